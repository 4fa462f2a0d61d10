"""When is a mean known well enough: the paper's Student-t rule (§ III-A.3).

The rule looks at losses in the order of their trial index, never at who finished first.
"""

from __future__ import annotations

import functools
import math

from safemargin.settings import Settings


@functools.lru_cache(maxsize=4096)
def student_quantile(confidence: float, trials: int) -> float:
    """t_α for a two-sided interval from so many trials."""
    from scipy.special import stdtrit  # scipy is slow to import and not needed for lookups

    return float(stdtrit(trials - 1, 0.5 + confidence / 2))


class StudentRule:
    """Stop once t_α · stdev* / √N ≤ ε̂_sampling, not before N_min, at the latest at the cap."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trials = 0
        self.mean = 0.0
        self._squares = 0.0  # Welford's sum of squared deviations: stable, and order-exact

    def add(self, loss: float) -> None:
        """Take the next trial's loss, in index order."""
        self.trials += 1
        delta = loss - self.mean
        self.mean += delta / self.trials
        self._squares += delta * (loss - self.mean)

    @property
    def half_width(self) -> float:
        """t_α · stdev* / √N with Bessel's correction; infinite for fewer than two trials."""
        if self.trials < 2:
            return math.inf
        deviation = math.sqrt(self._squares / (self.trials - 1))
        quantile = student_quantile(self.settings.sampling_confidence, self.trials)
        return quantile * deviation / math.sqrt(self.trials)

    @property
    def sure(self) -> bool:
        """Whether the mean is known as well as the settings ask."""
        enough = self.trials >= self.settings.min_trials
        return enough and self.half_width <= self.settings.sampling_error

    @property
    def stopped(self) -> bool:
        """Whether no further trial is wanted."""
        return self.sure or self.trials >= self.settings.max_trials
