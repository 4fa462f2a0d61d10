"""What the rest of a collection will cost, from a sample of finished pieces.

Moments cost very different amounts, so every figure has a range. The sum of R further costs, of
which m are known with mean x̄ and variance s², is R·x̄, with the variance R²·s²·(1/m + 1/R); phases
add up. Student's quantile (degrees of freedom after Welch and Satterthwaite) is applied to the
logarithm of the sum: costs are skewed and above 0. A few moments hardly know their own spread, so
s² is averaged with one more degree of freedom at (x̄/2)², as if costs usually differed by half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from safemargin.core.records import PHASES, EpisodeKey, Floats, Phase
from safemargin.core.settings import Settings
from safemargin.errors import StudyIncomplete
from safemargin.study.costs import Cost, Piece, read_costs, representative, whole_moments
from safemargin.study.store import Store

CONFIDENCE = 0.9
"""The confidence of every range."""

USUAL_SPREAD = 0.5
"""The spread of costs relative to their mean, assumed beforehand; it weighs as much as one cost."""


@dataclass(frozen=True, slots=True)
class Range:
    """A cost, and the range in which it lies nine times out of ten."""

    expected: float
    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        """Add as if both were high or low at the same time, so the range is never too narrow."""
        return Range(self.expected + other.expected, self.low + other.low, self.high + other.high)

    def through(self, function: Callable[[float], float]) -> Range:
        """Apply an increasing function to all three numbers."""
        return Range(function(self.expected), function(self.low), function(self.high))


NOTHING = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StageCost:
    """The remaining cost of one stage: the episodes, or the criticality for one n."""

    n: int
    """0: the episodes."""
    pieces: int
    """Moments to measure, or episodes to select them from."""
    sample: int
    """Pieces that the forecast is based on."""
    trials: Range
    steps: Range
    """Simulator steps."""
    worker_seconds: Range
    """Seconds of a single worker."""
    capped: float
    """The share of the sample that reached `max_trials`."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The remaining cost of a collection, by stage and in total."""

    wanted: Mapping[Phase, int]
    """Phase → moments."""
    left: Mapping[Phase, int]
    """Phase → those not yet measured for every n."""
    sample: Mapping[Phase, int]
    """Phase → moments, measured for every n, that the forecast is based on."""
    stages: tuple[StageCost, ...]
    """The episodes, then each n."""
    trials: Range
    steps: Range
    worker_seconds: Range
    disk_bytes: float
    """Size of the whole study, once it is finished."""

    def without_episodes(self) -> Forecast:
        """Return the cost of the trials alone, where the episodes are there already."""
        stages = tuple(stage for stage in self.stages if stage.n)
        return replace(
            self,
            stages=stages,
            steps=sum((stage.steps for stage in stages), NOTHING),
            worker_seconds=sum((stage.worker_seconds for stage in stages), NOTHING),
        )

    def useful_workers(self, workers: int) -> int:
        """Return how many of the workers have something to do: one worker measures a moment."""
        return max(1, min(workers, sum(self.left.values())))


def forecast(
    sample: Mapping[Piece, Cost],
    settings: Settings,
    wanted: Mapping[Phase, int],
    *,
    done: Mapping[Piece, Cost],
) -> Forecast:
    """Forecast the rest of a collection from a sample of costs; the study holds `done`."""
    n_values = settings.n_values
    whole = _count(whole_moments(sample, n_values))
    if not any(whole.values()):
        raise StudyIncomplete("no moment is measured for every n, so there is nothing to plan from")
    finished = _count(whole_moments(done, n_values))
    stages = tuple(_stage(sample, n, settings, wanted, done) for n in (0, *n_values))
    return Forecast(
        wanted=dict(wanted),
        left={phase: max(wanted[phase] - finished[phase], 0) for phase in PHASES},
        sample=whole,
        stages=stages,
        trials=sum((stage.trials for stage in stages), NOTHING),
        steps=sum((stage.steps for stage in stages), NOTHING),
        worker_seconds=sum((stage.worker_seconds for stage in stages), NOTHING),
        disk_bytes=sum(_stored(sample, n) for n in (0, *n_values)) * sum(wanted.values()),
    )


def seconds_left(
    store: Store, settings: Settings, wanted: Mapping[Phase, int], workers: int
) -> Range | None:
    """Forecast a collection's rest from the moments measured so far, as a plan does.

    None until a moment is measured for every n. The seconds are those of all workers together.
    """
    done = read_costs(store, settings)
    try:
        found = forecast(representative(done, settings.n_values), settings, wanted, done=done)
    except StudyIncomplete:
        return None
    return found.worker_seconds.through(lambda spent: spent / found.useful_workers(workers))


def _count(keys: Iterable[EpisodeKey]) -> dict[Phase, int]:
    phases = [key.phase for key in keys]
    return {phase: phases.count(phase) for phase in PHASES}


def _stage(
    sample: Mapping[Piece, Cost],
    n: int,
    settings: Settings,
    wanted: Mapping[Phase, int],
    done: Mapping[Piece, Cost],
) -> StageCost:
    """Forecast one stage, over both phases."""
    held = _count(key for (key, its_n), cost in done.items() if its_n == n and (n or cost.moments))
    left = [max(wanted[phase] - held[phase], 0) for phase in PHASES]
    pieces = {key: cost for (key, its_n), cost in sample.items() if its_n == n}

    def total(name: str, *, exact: bool = False) -> Range:
        by_phase: dict[Phase, dict[EpisodeKey, float]] = {phase: {} for phase in PHASES}
        for key, cost in pieces.items():
            if not math.isnan(value := float(getattr(cost, name))):
                by_phase[key.phase][key] = value
        groups = by_phase.values()
        if n == 0:
            return predict([_per_moment(group, pieces) for group in groups], left)
        return predict([np.array(list(group.values())) for group in groups], left, exact=exact)

    return StageCost(
        n=n,
        pieces=sum(left),
        sample=len(pieces),
        trials=total("trials", exact=settings.trial_plan == "fixed") if n else NOTHING,
        steps=total("steps"),
        worker_seconds=total("seconds"),
        capped=float(np.mean([cost.capped for cost in pieces.values()])) if pieces else 0.0,
    )


def _per_moment(values: Mapping[EpisodeKey, float], episodes: Mapping[EpisodeKey, Cost]) -> Floats:
    """Return the cost of running games until one has a step to select, [games].

    Games may have several lives, and some give no moment, so what counts is the ratio r = Σx/Σe of
    costs to moments. Its residuals x − r·e, centred on r, have the mean and the spread that a
    sample of such costs would have.
    """
    games: dict[int, list[float]] = {}
    for key, value in values.items():
        game = games.setdefault(key.index, [0.0, 0.0])
        game[0] += value
        game[1] += episodes[key].moments
    cost, moments = np.array(list(games.values())).reshape(-1, 2).T
    if moments.sum() == 0:
        return np.empty(0)
    ratio = cost.sum() / moments.sum()
    return np.asarray(ratio + (cost - ratio * moments) / moments.mean())


def predict(samples: Sequence[Floats], left: Sequence[int], *, exact: bool = False) -> Range:
    """Predict the sum of `left` further values of each group from a sample of each.

    Where a group has fewer than two values, all groups are pooled. With `exact`, equal values are
    no coincidence.
    """
    groups = [(sample, count) for sample, count in zip(samples, left, strict=True) if count > 0]
    if any(len(sample) < 2 for sample, _ in groups):
        groups = [(np.concatenate(list(samples)), sum(left))]
    expected = sum(count * float(sample.mean()) for sample, count in groups)
    if expected <= 0 or (exact and all(np.ptp(sample) == 0 for sample, _ in groups)):
        return Range(expected, expected, expected)
    parts = []  # the variances of the groups' sums, with their degrees of freedom
    for sample, count in groups:
        size, mean = len(sample), float(sample.mean())
        squares = size * float(sample.var()) + (USUAL_SPREAD * mean) ** 2
        parts.append((count**2 * squares / size * (1 / size + 1 / count), size))
    variance = sum(part for part, _ in parts)
    from scipy.special import stdtrit  # scipy is slow to import

    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    width = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * math.sqrt(variance) / expected
    factor = math.exp(min(width, 100.0))
    return Range(expected, expected / factor, expected * factor)


def _stored(sample: Mapping[Piece, Cost], n: int) -> float:
    """Return the bytes on disk per moment, of its episode (n = 0) or of one estimate."""
    pieces = [cost for (_, its_n), cost in sample.items() if its_n == n]
    moments = len(pieces) if n else sum(cost.moments for cost in pieces)
    return sum(cost.stored for cost in pieces) / max(moments, 1)
