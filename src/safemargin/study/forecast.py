"""What the rest of a collection will cost, from a sample of finished pieces.

Moments cost very different amounts, so every figure has a range. The sum of R further costs, of
which m are known with mean x̄ and variance s², is R·x̄, with the variance R²·s²·(1/m + 1/R); phases
add up. Student's quantile (degrees of freedom after Welch and Satterthwaite) is applied to the
logarithm of the sum: costs are skewed and above 0. A few moments hardly know their own spread, so
s² is averaged with one more degree of freedom at (x̄/2)², as if costs usually differed by half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from safemargin.core.records import PHASES, Episode, EpisodeKey, Floats, Measurement, Phase
from safemargin.core.settings import Settings
from safemargin.errors import StudyIncomplete
from safemargin.study.blobs import pack
from safemargin.study.selection import eligible_steps
from safemargin.study.store import Store

CONFIDENCE = 0.9
"""Of every range."""

USUAL_SPREAD = 0.5
"""Of costs, relative to their mean, before any is seen; weighs as much as one of them."""

Piece = tuple[EpisodeKey, int]
"""An episode and n; n = 0 is the episode itself."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one finished piece took."""

    steps: int
    """Simulator steps."""
    seconds: float
    """Of one worker; NaN where the clock is not to be trusted."""
    trials: int = 0
    capped: bool = False
    stored: float = 0.0
    """Bytes on disk."""
    moments: int = 0
    """Of an episode: 1 where it has a step to select, else 0."""


@dataclass(frozen=True, slots=True)
class Range:
    """A cost, and between which ends it lies nine times out of ten."""

    expected: float
    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        """Both together, as if they were dear or cheap at the same time: never too narrow."""
        return Range(self.expected + other.expected, self.low + other.low, self.high + other.high)

    def through(self, function: Callable[[float], float]) -> Range:
        """All three under an increasing function."""
        return Range(function(self.expected), function(self.low), function(self.high))


NOTHING = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StageCost:
    """What is left of one stage: the episodes, or the criticality for one n."""

    n: int
    """0: the episodes."""
    pieces: int
    """Moments to measure, or episodes to choose them from."""
    sample: int
    """Pieces that the forecast is made from."""
    trials: Range
    steps: Range
    """Simulator steps."""
    worker_seconds: Range
    """Of one worker."""
    capped: float
    """The share of the sample that reached `max_trials`."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is left of a collection, stage by stage and in all."""

    wanted: Mapping[Phase, int]
    """Phase → moments."""
    left: Mapping[Phase, int]
    """Phase → those not yet measured for every n."""
    sample: Mapping[Phase, int]
    """Phase → moments, measured for every n, that the forecast is made from."""
    stages: tuple[StageCost, ...]
    """The episodes, then each n."""
    trials: Range
    steps: Range
    worker_seconds: Range
    disk_bytes: float
    """Of the whole study, once it is finished."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


# -- what pieces took --------------------------------------------------------------------------


def cost_of_episode(episode: Episode, seconds: float, settings: Settings) -> Cost:
    """What an episode took that was just run."""
    arrays = (episode.actions, episode.rewards, episode.scores)
    blobs = [sum(len(pack(array)) for array in arrays)]
    blobs += [len(pack(values)) for values in episode.proxies.values()]
    small = 2 + len(episode.proxies)  # rows of its costs, its moment, and the proxies there
    return Cost(
        episode.steps,
        seconds,
        stored=sum(map(_bytes_of_row, blobs)) + small * _bytes_of_row(0),
        moments=_usable(episode.opening, episode.steps, episode.cut, settings),
    )


def cost_of_measurement(measurement: Measurement, seconds: float) -> Cost:
    """What a moment took that was just measured for one n."""
    blobs = len(pack(measurement.perturbed)) + len(pack(measurement.unperturbed))
    return Cost(
        measurement.steps,
        seconds,
        trials=measurement.estimate.trials,
        capped=measurement.estimate.capped,
        stored=_bytes_of_row(blobs) + _bytes_of_row(0),
    )


def read_costs(store: Store, settings: Settings) -> dict[Piece, Cost]:
    """What every finished piece of a study took."""
    usable = {key: _usable(*outline, settings) for key, outline in store.episode_outlines().items()}
    stored: dict[Piece, float] = {}
    for key, n, size in store.row_sizes():
        stored[key, n] = stored.get((key, n), 0.0) + _bytes_of_row(size)
    return {
        (row.key, row.n): Cost(
            row.steps,
            row.seconds,
            trials=row.trials,
            capped=row.capped,
            stored=stored[row.key, row.n],
            moments=usable[row.key] if row.n == 0 else 0,
        )
        for row in store.costs()
    }


def whole_moments(pieces: Iterable[Piece], n_values: Sequence[int]) -> set[EpisodeKey]:
    """The moments, by their episodes, that are measured for every n."""
    measured: dict[EpisodeKey, int] = {}
    for key, n in pieces:
        measured[key] = measured.get(key, 0) + (n > 0)
    return {key for key, count in measured.items() if count == len(n_values)}


def without_clock(costs: Mapping[Piece, Cost], keys: Set[EpisodeKey]) -> dict[Piece, Cost]:
    """The same costs, but the seconds of some episodes and of their moments are not trusted."""
    return {
        piece: replace(cost, seconds=math.nan) if piece[0] in keys else cost
        for piece, cost in costs.items()
    }


def _usable(opening: int, steps: int, cut: bool, settings: Settings) -> int:
    return int(bool(eligible_steps(opening=opening, steps=steps, cut=cut, settings=settings)))


def _bytes_of_row(blobs: int) -> float:
    """What a row takes in SQLite's file of 4-kB pages: a long one has pages of its own."""
    size = blobs + 30  # the key and the plain columns
    return 1.3 * size if size <= 1000 else 500 + 4096 * math.ceil((size - 1000) / 4092)


# -- what is left ------------------------------------------------------------------------------


def forecast(
    sample: Mapping[Piece, Cost],
    settings: Settings,
    wanted: Mapping[Phase, int],
    *,
    done: Mapping[Piece, Cost],
) -> Forecast:
    """What a collection still takes, from what a sample took; `done` is what the study holds."""
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
    """One stage, over both phases."""
    held = _count(key for (key, its_n), cost in done.items() if its_n == n and (n or cost.moments))
    left = [max(wanted[phase] - held[phase], 0) for phase in PHASES]
    pieces = {key: cost for (key, its_n), cost in sample.items() if its_n == n}

    def total(name: str, *, exact: bool = False) -> Range:
        values = {key: float(getattr(cost, name)) for key, cost in pieces.items()}
        known = {key: value for key, value in values.items() if not math.isnan(value)}
        by_phase = [
            {key: value for key, value in known.items() if key.phase == phase} for phase in PHASES
        ]
        if n == 0:
            return predict([_per_moment(group, pieces) for group in by_phase], left)
        return predict([np.array(list(group.values())) for group in by_phase], left, exact=exact)

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
    """The cost of an episode with a step to select, those too short for one included, [games].

    Games may have several lives, and some give no moment: the ratio r = Σx/Σe of costs and moments
    is what counts. Its residuals x − r·e, put around r, have the mean and the spread that a sample
    of such costs would have.
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
    """The sum of so many further values of each group, from a sample of each.

    Where a group has fewer than two values, all are taken for one group. `exact`: equal values are
    no chance.
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
    """Bytes on disk for each moment, of its episode or of one estimate."""
    pieces = [cost for (_, its_n), cost in sample.items() if its_n == n]
    moments = len(pieces) if n else sum(cost.moments for cost in pieces)
    return sum(cost.stored for cost in pieces) / max(moments, 1)
