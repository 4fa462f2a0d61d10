"""A change between two agents: its interval, its verdict, and what more data would show.

Games are the independent units. Where both agents played the same games, a game's values are
subtracted before their spread is measured (paired); elsewhere the spreads add up. The standard
error of a mean over moments is that of a ratio, linearised per game, so games may hold any number
of moments. To it comes the square of range / (games + 2), as Agresti and Min add half an
observation to each cell of a paired table: what no game has shown may still be so in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Integers

Verdict = Literal["better", "no difference", "no worse", "worse", "cannot tell"]

POWER = 0.8
"""The probability with which a forecast number of moments decides."""
MOST_GAMES = 10**9
_normal = NormalDist()


@dataclass(frozen=True, eq=False)
class Values:
    """One number for each row of a study (a moment or a game), and the game it belongs to."""

    values: Floats  # [rows]
    games: Integers  # [rows] equal for rows that are not independent

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def influences(self, count: int) -> Floats:
        """Return how far each of `count` games moves the mean, [games]."""
        moved = np.bincount(self.games, self.values - self.values.mean(), minlength=count)
        return np.asarray(moved / len(self.values))


@dataclass(frozen=True)
class Change:
    """The new value minus the old one, and how well it is known."""

    old: float
    new: float
    change: float
    standard_error: float
    degrees: float
    """Degrees of freedom of Student's t."""
    games: int
    """Independent games behind it; of the smaller study where they are not paired."""
    scale: float
    """The size of the old values: a share such as 5% is a share of this."""

    def half_width(self, error: float, games: float | None = None) -> float:
        """Return the half-width of the interval that misses on either side with this error.

        With `games`: the one to expect with this many games instead.
        """
        scale = 1.0 if games is None else games / self.games
        if self.games < 2 or self.degrees * scale <= 0:
            return math.inf
        from scipy.special import stdtrit  # here: importing a study must not load scipy

        quantile = float(stdtrit(self.degrees * scale, 1 - error))
        return quantile * self.standard_error / math.sqrt(scale)

    def expected_error(self, games: float) -> float:
        """Return the standard error to expect with this many games."""
        return self.standard_error / math.sqrt(games / self.games)


def change_of_means(old: Values, new: Values, *, paired: bool, span: float | None = None) -> Change:
    """Compare two means; `span` is the range of possible values (None: that of all values)."""
    if span is None:
        every = np.concatenate([old.values, new.values])
        span = float(every.max() - every.min())
    if paired:
        count = int(max(old.games.max(), new.games.max())) + 1
        present = len(np.union1d(old.games, new.games))
        moved = new.influences(count) - old.influences(count)
        variance = _variance(moved, present) + (span / (present + 2)) ** 2
        return _change(old.mean, new.mean, variance, present - 1, present)
    parts = []
    for study in (old, new):
        count = len(np.unique(study.games))
        moved = study.influences(int(study.games.max()) + 1)
        parts.append((_variance(moved, count) + (span / (count + 2)) ** 2, count))
    variance = sum(part for part, _ in parts)
    return _change(old.mean, new.mean, variance, _welch(parts), min(count for _, count in parts))


def change_from(promise: float, new: Values, *, old: float, span: float) -> Change:
    """Compare a mean with a promised value; `old` is what the other agent had, to be shown."""
    count = len(np.unique(new.games))
    variance = _variance(new.influences(int(new.games.max()) + 1), count)
    found = _change(promise, new.mean, variance + (span / (count + 2)) ** 2, count - 1, count)
    return replace(found, old=old, scale=abs(old))


def change_by_groups(
    statistics: tuple[Callable[[Integers | None], float], Callable[[Integers | None], float]],
    groups: tuple[Integers, Integers],  # [groups left out in turn] of each study
    *,
    games: int,
    paired: bool,
    span: float,
) -> Change:
    """Compare a statistic that is no mean, by leaving out one group of games after another.

    Each statistic takes the group to leave out, or None. The grouped jackknife covers all that the
    statistic depends on, such as margins that are fitted anew to what is left.
    """
    old, new = (float(statistic(None)) for statistic in statistics)
    without = [
        np.array([statistic(group) for group in left_out], dtype=np.float64)
        for statistic, left_out in zip(statistics, groups, strict=True)
    ]
    floor = (span / (games + 2)) ** 2
    if paired:
        moved = without[1] - without[0]
        return _change(old, new, _jackknife(moved) + floor, len(moved) - 1, games)
    parts = [(_jackknife(each) + floor, len(each)) for each in without]
    return _change(old, new, parts[0][0] + parts[1][0], _welch(parts), games)


def _jackknife(without: Floats) -> float:
    """Return the variance that leaving out each group shows."""
    count = len(without)
    return float((count - 1) / count * ((without - without.mean()) ** 2).sum())


def _variance(moved: Floats, games: int) -> float:
    return float((moved**2).sum()) * games / (games - 1) if games > 1 else 0.0


def _welch(parts: list[tuple[float, int]]) -> float:
    """Return Welch's degrees of freedom for variances and the number of units behind each."""
    if min(count for _, count in parts) < 2:
        return 0.0
    below = sum(part**2 / (count - 1) for part, count in parts)
    return sum(part for part, _ in parts) ** 2 / below if below else 1.0


def _change(old: float, new: float, variance: float, degrees: float, games: int) -> Change:
    return Change(old, new, new - old, math.sqrt(variance), degrees, games, abs(old))


def verdict_of(low: float, high: float, matters: float) -> Verdict:
    """Judge the interval of a change that is good above 0 (two one-sided tests for equivalence).

    No difference: the whole interval lies within ± what matters. No worse: it does not reach down
    to −matters, so that there is no deterioration that matters, and perhaps an improvement.
    """
    if low > high or not matters >= 0:
        raise InvalidInput(f"no verdict on [{low}, {high}] where {matters} matters")
    if -matters <= low and high <= matters:
        return "no difference"
    if high < 0:
        return "worse"
    if low > 0:
        return "better"
    return "no worse" if low >= -matters else "cannot tell"


def chance_of_worse(
    change: Change, deterioration: float, matters: float, error: float, games: float | None = None
) -> float:
    """Return how likely `games` games show that a true deterioration of this size is worse."""
    size = change.games if games is None else games
    width = change.half_width(error, size)
    if not math.isfinite(width):
        return 0.0
    # Worse: the estimate lies below −width, and not so near 0 that it is shown not to matter.
    return _below(deterioration - max(width, matters - width), change.expected_error(size))


def chance_of_verdict(
    change: Change, effect: float, matters: float, error: float, games: float
) -> float:
    """Return how likely `games` games lead to any verdict but 'cannot tell' at a true effect."""
    width, sd = change.half_width(error, games), change.expected_error(games)
    if not math.isfinite(width):
        return 0.0
    if width <= matters / 2:
        return 1.0
    return 1 - (_below(width - matters - effect, sd) - _below(-width - effect, sd))


def games_for(chance: Callable[[float], float], *, power: float = POWER) -> int | None:
    """Return the fewest games at which a chance that grows with them reaches the power.

    None where it does not, however many there are.
    """
    if not 0 < power < 1:
        raise InvalidInput(f"the power must lie between 0 and 1, got {power}")
    high = 2
    while chance(high) < power:
        high *= 2
        if high > MOST_GAMES:
            return None
    low = max(high // 2, 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= power else (middle + 1, high)
    return high


def _below(distance: float, sd: float) -> float:
    if sd == 0:
        return float(distance >= 0)
    return _normal.cdf(distance / sd)
