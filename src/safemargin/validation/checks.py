"""The checks of a gate: what each compares between an old and a new checkpoint.

Each returns a `Change`, with games as the independent units. Margins are fitted anew by each
agent's own moments. Where the checkpoints are paired, they started from the same seeds, and a
natural moment is drawn with the same random number in both.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from safemargin.core.records import Floats
from safemargin.margins.bounds.sample import Booleans, Integers
from safemargin.margins.fitting import NoBound
from safemargin.margins.methods import DEFAULT_METHOD, fit_sample
from safemargin.validation.baseline import Baseline
from safemargin.validation.effects import (
    Change,
    Values,
    change_by_groups,
    change_from,
    change_of_means,
)
from safemargin.validation.heldout import hold_out

GROUPS = 20
"""Groups of games that are left out in turn, where margins are fitted anew."""

FEWEST_IN_TAIL = 5
"""Fewer of the worst moments than this say nothing about their mean."""


@dataclass(frozen=True, eq=False)
class Side:
    """One checkpoint as its checks see it: the games that both have played."""

    baseline: Baseline
    used: Booleans  # [moments] natural ones of games that are compared
    units: Integers  # [moments used] the independent game that each belongs to
    return_units: Integers  # [games compared]
    returns: Floats  # [games compared]

    @property
    def largest(self) -> Floats:
        """C_n at each natural moment, [moments used, n]."""
        return np.asarray(np.maximum.accumulate(self.baseline.losses[self.used], axis=1))

    def affordable(self, tolerance: float) -> Floats:
        """Return the largest n whose true losses stay within the tolerance, [moments used]."""
        granted = (self.largest <= tolerance).sum(axis=1)
        sizes = np.array([0, *self.baseline.n_values], dtype=np.float64)
        return np.asarray(sizes[granted])

    @property
    def proxies(self) -> Floats:
        """The proxy at each natural moment, [moments used]; its smallest n where it looks at n."""
        values = self.baseline.proxies[self.used]
        return values if values.ndim == 1 else np.asarray(values[:, 0])


def sides(old: Baseline, new: Baseline, *, paired: bool) -> tuple[Side, Side]:
    """Return both checkpoints on what can be compared: where paired, the games both have played."""
    last = min(old.game_numbers.max(), new.game_numbers.max()) if paired else np.inf
    labels = _joint_groups(old, new) if paired else None
    found = []
    for each in (old, new):
        used = each.natural & (each.games <= last)
        kept = each.game_numbers <= last
        known = labels or _groups(each)
        units = {int(game): known.get(int(game), int(game)) for game in each.game_numbers[kept]}
        found.append(
            Side(
                baseline=each,
                used=used,
                units=np.array([units[game] for game in each.games[used].tolist()], np.int64),
                return_units=np.array(list(units.values()), np.int64),
                returns=each.returns[kept],
            )
        )
    return found[0], found[1]


def _groups(baseline: Baseline) -> dict[int, int]:
    """Return game → the first game of its group: copies are one."""
    first: dict[int, int] = {}
    natural = baseline.natural
    pairs = zip(baseline.games[natural].tolist(), baseline.groups[natural].tolist(), strict=True)
    return {game: first.setdefault(group, game) for game, group in pairs}


def _joint_groups(old: Baseline, new: Baseline) -> dict[int, int]:
    """Return game → the first game that is a copy of it in either study, or of a copy."""
    root: dict[int, int] = {}

    def find(game: int) -> int:
        while root.setdefault(game, game) != game:
            game = root[game]
        return game

    for each in (old, new):
        for game, first in _groups(each).items():
            low, high = sorted((find(game), find(first)))
            root[high] = low
    return {game: find(game) for game in list(root)}


def returns(old: Side, new: Side, *, paired: bool) -> Change:
    """Compare the mean return of a game.

    Returns may cancel one another, as where games are won and lost: their scale is their mean size.
    """
    change = change_of_means(
        Values(old.returns, old.return_units), Values(new.returns, new.return_units), paired=paired
    )
    return replace(change, scale=float(np.abs(old.returns).mean()))


def affordable(old: Side, new: Side, tolerance: float, *, paired: bool) -> Change:
    """Compare how many random actions a natural moment affords: by its true losses, not a bound."""
    span = float(old.baseline.n_values[-1])
    return change_of_means(
        Values(old.affordable(tolerance), old.units),
        Values(new.affordable(tolerance), new.units),
        paired=paired,
        span=span,
    )


def critical(old: Side, new: Side, tolerance: float, call_at: int, *, paired: bool) -> Change:
    """Compare the share of natural moments that afford fewer than `call_at` random actions.

    These are the decisions at which perfect knowledge would call somebody.
    """
    below = [
        Values((s.affordable(tolerance) < call_at).astype(np.float64), s.units) for s in (old, new)
    ]
    return change_of_means(below[0], below[1], paired=paired, span=1.0)


def worst(old: Side, new: Side, share: float, *, paired: bool) -> Change:
    """Compare the mean loss, after up to the largest n, over the worst share of moments."""
    old_tail, new_tail = (
        Values(_tail(side.largest[:, -1], share), side.units) for side in (old, new)
    )
    return change_of_means(old_tail, new_tail, paired=paired)


def _tail(losses: Floats, share: float) -> Floats:
    """Return numbers whose mean is that of the worst share of the losses, [moments].

    q + max(c − q, 0) / share, where q is the loss that a share exceeds (Rockafellar and Uryasev):
    their spread is that of the tail's mean.
    """
    limit = float(np.quantile(losses, 1 - share))
    return np.asarray(limit + np.maximum(losses - limit, 0) / share)


def drift(old: Side, new: Side, *, paired: bool) -> Change:
    """Compare the proxies: how much more often a new one is the higher than the lower.

    From −1 to 1, and 0 where both have the same ranks: the rank-biserial correlation, with the
    placement of each value in the other checkpoint's values for its spread.
    """
    placed = [_placement(of, among) for of, among in ((new, old), (old, new))]
    change = change_of_means(
        Values(placed[1], old.units), Values(placed[0], new.units), paired=paired, span=1.0
    )
    # Each value is placed once in each direction: the sum counts every influence twice.
    return replace(change, old=0.0, new=change.change, standard_error=2 * change.standard_error)


def _placement(of: Side, among: Side) -> Floats:
    """Return the share of the other values below each value; equal ones count half."""
    ordered = np.sort(among.proxies)
    below = np.searchsorted(ordered, of.proxies, side="left")
    up_to = np.searchsorted(ordered, of.proxies, side="right")
    return np.asarray((below + up_to) / 2 / len(ordered))


def called(
    old: Side, new: Side, tolerance: float, call_at: int, confidence: float, *, paired: bool
) -> Change:
    """Compare the share of decisions at which each agent's own margin lies below `call_at`.

    Margins are fitted anew without each group of games, so the interval covers what fitting adds:
    with few moments, that is a lot.
    """
    statistics = tuple(
        partial(_called_without, side, _fold_of(side), tolerance, call_at, confidence)
        for side in (old, new)
    )
    groups = tuple(np.unique(_fold_of(side)[side.used]) for side in (old, new))
    if paired:
        groups = (np.union1d(*groups),) * 2
    games = len(np.union1d(old.units, new.units)) if paired else _fewer_games(old, new)
    return change_by_groups(
        (statistics[0], statistics[1]), (groups[0], groups[1]), games=games, paired=paired, span=1.0
    )


def _fewer_games(old: Side, new: Side) -> int:
    return min(len(np.unique(side.units)) for side in (old, new))


def _fold_of(side: Side) -> Integers:
    """Return the group in which each moment is left out, [moments]: the same for paired games.

    Spread moments are left out by their own games.
    """
    found = side.baseline.groups % GROUPS
    found[side.used] = side.units % GROUPS
    return found


def _called_without(
    side: Side,
    folds: Integers,
    tolerance: float,
    call_at: int,
    confidence: float,
    left_out: int | None,
) -> float:
    """Return the share of natural moments below `call_at`, by margins fitted to these moments."""
    kept = np.ones(len(folds), bool) if left_out is None else folds != left_out
    with warnings.catch_warnings(action="ignore", category=NoBound):
        bound = fit_sample(side.baseline.sample(kept), method=DEFAULT_METHOD, confidence=confidence)
    judged = side.baseline.sample(side.used & kept)
    proxies = judged.proxies
    upper = bound.at(proxies if judged.looks_at_n else proxies[:, 0])
    upper = np.where(proxies > bound.grid[:, -1], np.inf, upper)
    granted = np.logical_and.accumulate(upper <= tolerance, axis=1).sum(axis=1)
    margins = np.array([0, *judged.n_values])[granted]
    return float((margins < call_at).mean())


def margins_hold(old: Side, new: Side, tolerance: float, confidence: float) -> Change:
    """Compare how often margins break on moments their fit has not seen with what is promised."""
    old_failed, new_failed = (_broken(side, tolerance, confidence) for side in (old, new))
    return change_from(
        1 - confidence, Values(new_failed, new.units), old=float(old_failed.mean()), span=1.0
    )


def _broken(side: Side, tolerance: float, confidence: float) -> Floats:
    """Return 1 for each natural moment that broke a margin fitted without it, [moments used]."""
    with warnings.catch_warnings(action="ignore", category=NoBound):
        found = hold_out(side.baseline.sample(), method=DEFAULT_METHOD, confidence=confidence)
    return found.chain_failures(tolerance)[side.used].astype(np.float64)
