"""Groups moments that a model could recognise from one another, for cross-fitting.

A model that has seen a moment also knows the moments shortly before and after it, and all of them
again in any episode that has run into the same play. Such moments share a group, and a model is
never judged or calibrated on a group that it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW = 16
"""Episodes whose scores agree to the last bit over this many steps are on the same play there."""

FEWEST_ROWS = 8
"""Windows with fewer distinct rows of scores than this cannot tell two plays apart."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Kinship:
    """The groups of moments that belong together."""

    groups: npt.NDArray[np.int64]  # [moments] −1 for those that are for training only
    kin: npt.NDArray[np.int64]  # [pairs, 2] a moment for training only, and a group it is near to


def find_kin(
    scores: Sequence[npt.NDArray[np.float32]],  # of each moment's episode, [steps, …]
    steps: Sequence[int],  # of each moment
    games: Sequence[object],  # moments of one game belong together anyway
    training_only: npt.NDArray[np.bool_],  # [moments]
    reach: int,
) -> Kinship:
    """Group moments that share a game, or lie within `reach` steps of one another on one play.

    Moments that are for training only link no others: however many there are, the groups of the
    rest stay as they are.
    """
    every = [window_hashes(rows) for rows in scores]
    return kin_by_hashes(every, steps, games, training_only, reach)


def kin_by_hashes(
    hashes: Sequence[npt.NDArray[np.unsignedinteger]],  # of each moment's episode, [steps]
    steps: Sequence[int],
    games: Sequence[object],
    training_only: npt.NDArray[np.bool_],
    reach: int,
) -> Kinship:
    """Group moments as `find_kin` does, by the `window_hashes` of their episodes."""
    own = ~training_only
    joined = _Sets(len(steps))
    links: set[tuple[int, int]] = set()

    def link(one: int, other: int) -> None:
        if own[one] and own[other]:
            joined.join(one, other)
        elif own[one] or own[other]:
            links.add((other, one) if own[one] else (one, other))

    first: dict[object, int] = {}
    for moment, game in enumerate(games):
        link(first.setdefault(game, moment), moment)
    for moment, other in near_pairs(hashes, steps, reach):
        link(moment, other)
    numbers = joined.numbers()
    groups = np.full(len(steps), -1, np.int64)
    groups[own] = np.unique(numbers[own], return_inverse=True)[1].reshape(-1)
    pairs = sorted({(label, int(groups[moment])) for label, moment in links})
    return Kinship(groups, np.array(pairs, np.int64).reshape(-1, 2))


def near_pairs(
    hashes: Sequence[npt.NDArray[np.unsignedinteger]],  # of each moment's episode, [steps]
    steps: Sequence[int],
    reach: int,
) -> Iterator[tuple[int, int]]:
    """Yield pairs of moments of which one's play passes within `reach` steps of the other.

    A pair may come in either order, and twice; each moment comes with itself.
    """
    owner = np.repeat(np.arange(len(hashes)), [len(one) for one in hashes])
    position = np.concatenate([np.arange(len(one)) for one in hashes])
    joint = np.concatenate(hashes)
    near = np.abs(position - np.asarray(steps)[owner]) <= reach
    kept = np.flatnonzero(near & (joint != 0))
    order = kept[np.argsort(joint[kept], kind="stable")]
    ordered = joint[order]
    for moment, step in enumerate(steps):
        sign = hashes[moment][step]
        if sign:
            low, high = (np.searchsorted(ordered, sign, side) for side in ("left", "right"))
            for other in np.unique(owner[order[low:high]]).tolist():
                yield moment, other


def window_hashes(rows: npt.NDArray[np.float32]) -> Hashes:
    """Return a hash of the window that ends at each step; of the first one before it is full.

    It is 0 where too little varies in the window.
    """
    count = len(rows)
    flat = np.ascontiguousarray(rows, np.float32).reshape(count, -1).view(np.uint32)
    multipliers = _odd_numbers(flat.shape[1] + WINDOW)
    row_hash = (flat.astype(np.uint64) * multipliers[: flat.shape[1]]).sum(axis=1, dtype=np.uint64)
    row_hash ^= row_hash >> np.uint64(29)
    if count < WINDOW:
        return np.zeros(count, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(row_hash, WINDOW)  # [count − WINDOW + 1, …]
    found = (windows * multipliers[flat.shape[1] :]).sum(axis=1, dtype=np.uint64)
    distinct = (np.diff(np.sort(windows, axis=1), axis=1) != 0).sum(axis=1) + 1
    found = np.where(distinct >= FEWEST_ROWS, found | np.uint64(1), np.uint64(0))
    return np.concatenate([np.repeat(found[:1], WINDOW - 1), found])


def _odd_numbers(count: int) -> Hashes:
    """Return fixed odd multipliers (a multiplicative sequence of 64-bit words)."""
    numbers = np.empty(count, np.uint64)
    value = 0x9E3779B97F4A7C15
    for index in range(count):
        value = (value * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & (2**64 - 1)
        numbers[index] = value | 1
    return numbers


class _Sets:
    """Disjoint sets of numbers (union–find)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def _root(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, one: int, other: int) -> None:
        self._parent[self._root(one)] = self._root(other)

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number of each item's set, from 0 on."""
        roots = [self._root(item) for item in range(len(self._parent))]
        return np.unique(np.array(roots, np.int64), return_inverse=True)[1].reshape(-1)
