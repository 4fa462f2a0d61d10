"""Stopping rules: when a mean is known well enough.

Rules see losses in index order, never in the order of finishing, so results do not depend on the
workers.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from safemargin.core.records import Estimate
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput


class StoppingRule(ABC):
    """Takes losses one by one and says when there are enough.

    By default that is when the half-width is at most ε̂_sampling, from `minimum` trials on.
    """

    def __init__(self, settings: Settings, *, minimum: int | None = None) -> None:
        self.settings = settings
        self.minimum = settings.min_trials if minimum is None else minimum
        self.most = settings.max_trials
        """The rule stops at this many trials in any case."""
        self.trials = 0
        self.mean = 0.0

    @abstractmethod
    def add(self, loss: float) -> None:
        """Take the next trial's loss, in index order."""

    @property
    @abstractmethod
    def half_width(self) -> float:
        """The true mean lies within mean ± half_width with the settings' confidence α."""

    @property
    def sure(self) -> bool:
        """Whether the rule's demands are met, rather than a cap reached."""
        return self.trials >= self.minimum and self.half_width <= self.settings.sampling_error

    @property
    def stopped(self) -> bool:
        """Whether no further trial is needed."""
        return self.sure or self.trials >= self.most

    @property
    def certain(self) -> int:
        """The number of further trials that are needed whatever their losses."""
        least = min(self.minimum, self.most)
        return 0 if self.stopped else max(least - self.trials, 1)

    @property
    def likely(self) -> int:
        """The number of further trials that will be needed if losses stay as they are.

        The half-width shrinks roughly with the square root of the number of trials.
        """
        certain, possible = self.certain, self.most - self.trials
        ratio = math.inf if certain >= possible else self.half_width / self.settings.sampling_error
        if not math.isfinite(ratio):
            return certain
        return max(certain, min(math.ceil(self.trials * (ratio**2 - 1)), possible))

    def estimate(self, n: int, unperturbed: Sequence[float], *, exact: bool) -> Estimate:
        """Return what the losses taken so far say of n, beside these unperturbed returns."""
        return Estimate(
            n=n,
            mean=self.mean,
            half_width=0.0 if exact else self.half_width,
            trials=self.trials,
            exact=exact,
            unperturbed=float(np.mean(unperturbed)),
            capped=not self.sure,
        )


@functools.lru_cache(maxsize=4096)
def student_quantile(confidence: float, trials: int) -> float:
    """Return t_α for a two-sided interval from this many trials."""
    from scipy.special import stdtrit  # scipy is slow to import and not needed for lookups

    return float(stdtrit(trials - 1, 0.5 + confidence / 2))


class StudentRule(StoppingRule):
    """The paper's rule (§ III-A.3): t_α · stdev* / √N ≤ ε̂_sampling, from N_min trials on.

    For rare large losses it may stop too early: after N_min trials that all lost nothing the
    half-width is 0, and after a few that lost too little it is too narrow.
    """

    def __init__(self, settings: Settings, *, minimum: int | None = None) -> None:
        super().__init__(settings, minimum=minimum)
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


class RareLossRule(StudentRule):
    """The paper's rule where a trial can lose R at most: it waits until such losses were seen.

    With confidence α, a loss of R that N trials all missed has at most the chance ln(1/(1−α)) / N.
    So N_min is raised to ⌈ln(1/(1−α)) · R / ε̂⌉, and the half-width is never below what such a loss
    adds to the mean.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, minimum=rule_of_three_minimum(settings))
        self._unseen = math.log(1 / (1 - settings.sampling_confidence)) * (
            settings.largest_loss or 0.0
        )

    @property
    def half_width(self) -> float:
        """Student's half-width, or R · ln(1/(1−α)) / N if that is larger."""
        return max(self.students, self._unseen / max(self.trials, 1))

    @property
    def students(self) -> float:
        """Student's half-width alone, which earlier versions recorded."""
        return super().half_width


class FixedRule(StudentRule):
    """A fixed number of trials; the half-width is Student's.

    For stratified draws, whose mean is less noisy than that of independent ones, the half-width
    is conservative.
    """

    def __init__(self, settings: Settings, count: int) -> None:
        super().__init__(settings, minimum=count)
        self.most = count

    @property
    def sure(self) -> bool:
        """Whether all trials have been taken: there is no early stop, and no cap below that."""
        return self.trials >= self.minimum


class WorstRule(FixedRule):
    """A fixed number of trials, of which the one that loses most counts."""

    def add(self, loss: float) -> None:
        """Take the next trial's loss."""
        self.mean = max(self.mean, loss) if self.trials else loss
        self.trials += 1

    @property
    def half_width(self) -> float:
        """There is no sampling error: each trial is a sequence of actions that was tried."""
        return 0.0


def rule_of_three_minimum(settings: Settings) -> int:
    """N_min = ⌈ln(1/(1−α)) · R / ε̂⌉: no loss in this many trials means a mean below ε̂.

    If a loss of R has the chance ε̂/R, all of N trials miss it with probability
    (1 − ε̂/R)^N ≤ exp(−N ε̂/R) = 1 − α.
    """
    if settings.largest_loss is None:
        raise InvalidInput("the rule of three needs largest_loss")
    chance = math.log(1 / (1 - settings.sampling_confidence))
    needed = math.ceil(chance * settings.largest_loss / settings.sampling_error)
    return max(settings.min_trials, needed)


class BettingRule(StoppingRule):
    """A confidence sequence for a mean in a known range, valid at any stopping time.

    For each candidate mean on a grid two gamblers bet, one that the true mean is higher, one that
    it is lower. A candidate is ruled out once their average capital exceeds 1/(1 − α), which
    happens to the true mean with probability at most 1 − α, however many trials are seen (Ville's
    inequality; Waudby-Smith and Ramdas 2024, the hedged capital process). The rule assumes only
    the range of the losses, and usually needs many more trials than Student's t.
    """

    CANDIDATES = 1001

    def __init__(self, settings: Settings) -> None:
        if settings.largest_loss is None:
            raise InvalidInput("the anytime rule needs largest_loss")
        super().__init__(settings)
        self.low = settings.smallest_loss
        self.width = settings.largest_loss - settings.smallest_loss
        self._candidates = np.linspace(0, 1, self.CANDIDATES)  # in units of the range
        self._higher = np.zeros(self.CANDIDATES)  # log capital of those who bet on a higher mean
        self._lower = np.zeros(self.CANDIDATES)
        self._alive = np.ones(self.CANDIDATES, dtype=bool)
        # Predictions from earlier losses, regularised by one imaginary observation.
        self._sum, self._squares = 0.5, 0.25

    def add(self, loss: float) -> None:
        """Take the next trial's loss, in index order."""
        share = (loss - self.low) / self.width
        if not -1e-9 <= share <= 1 + 1e-9:
            raise InvalidInput(
                f"a trial lost {loss:g}, outside the stated range from smallest_loss "
                f"({self.settings.smallest_loss:g}) to largest_loss "
                f"({self.settings.largest_loss:g}); state a wider one"
            )
        self.trials += 1
        self.mean += (loss - self.mean) / self.trials
        self._bet(min(max(share, 0.0), 1.0))

    def _bet(self, share: float) -> None:
        count = self.trials
        variance = self._squares / count
        odds = 2 / (1 - self.settings.sampling_confidence)
        stake = math.sqrt(2 * math.log(odds) / (variance * count * math.log(1 + count)))
        candidates = self._candidates
        with np.errstate(divide="ignore"):
            upward = np.minimum(stake, 0.5 / candidates)
            downward = np.minimum(stake, 0.5 / (1 - candidates))
        self._higher += np.log1p(upward * (share - candidates))
        self._lower += np.log1p(-downward * (share - candidates))
        capital = np.logaddexp(self._higher, self._lower) - math.log(2)
        self._alive &= capital < math.log(1 / (1 - self.settings.sampling_confidence))
        self._sum += share
        average = self._sum / (count + 1)
        self._squares += (share - average) ** 2

    @property
    def half_width(self) -> float:
        """The larger distance from the mean to an end of the candidates that remain."""
        alive = np.flatnonzero(self._alive)
        if len(alive) == 0:  # the truth lies between two candidates around the mean
            return self.width / (self.CANDIDATES - 1)
        step = 1 / (self.CANDIDATES - 1)  # the truth may lie up to one candidate farther out
        ends = self._candidates[alive[[0, -1]]] + [-step, step]
        lowest, highest = self.low + self.width * np.clip(ends, 0, 1)
        return float(max(highest - self.mean, self.mean - lowest))
