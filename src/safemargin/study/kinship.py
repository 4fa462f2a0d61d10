"""Groups moments that a model could recognise from one another, for cross-fitting.

A model that has seen a moment also knows the moments shortly before and after it, and all of them
again in any episode that has run into the same play. Such moments share a group, and a model is
never judged or calibrated on a group that it was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

WINDOW = 16
"""Episodes whose scores agree to the last bit over this many steps are on the same play there."""

FEWEST_ROWS = 8
"""Windows with fewer distinct rows of scores than this cannot tell two plays apart."""

Hashes = npt.NDArray[np.uint64]


def kin_groups(
    scores: Sequence[npt.NDArray[np.float32]],  # of each moment's episode, [steps, …]
    steps: Sequence[int],  # of each moment
    labels: Sequence[object],  # moments with equal labels belong together anyway
    reach: int,
) -> npt.NDArray[np.int64]:
    """Return a group number per moment, [moments].

    Two moments share a group if their labels are equal, or if one lies on the play of the other's
    episode within `reach` steps of the other, or if a third one links them.
    """
    joined = _Sets(len(steps))
    first: dict[object, int] = {}
    for moment, label in enumerate(labels):
        joined.join(first.setdefault(label, moment), moment)
    every = [_window_hashes(rows) for rows in scores]  # each [steps], 0 where nothing can be told
    owner = np.repeat(np.arange(len(every)), [len(one) for one in every])
    position = np.concatenate([np.arange(len(one)) for one in every]) if every else owner
    hashes = np.concatenate(every) if every else np.zeros(0, np.uint64)
    near = np.abs(position - np.asarray(steps)[owner]) <= reach
    kept = np.flatnonzero(near & (hashes != 0))
    order = kept[np.argsort(hashes[kept], kind="stable")]
    ordered = hashes[order]
    for moment, step in enumerate(steps):
        sign = every[moment][step]
        if sign:
            low, high = (
                np.searchsorted(ordered, sign, "left"),
                np.searchsorted(ordered, sign, "right"),
            )
            for other in np.unique(owner[order[low:high]]):
                joined.join(moment, int(other))
    return joined.numbers()


def _window_hashes(rows: npt.NDArray[np.float32]) -> Hashes:
    """Return a hash of the window that ends at each step; of the first one before it is full."""
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
        path = [item]
        while self._parent[path[-1]] != path[-1]:
            path.append(self._parent[path[-1]])
        for below, above in pairwise(path):
            self._parent[below] = path[-1] if above != path[-1] else above
        return path[-1]

    def join(self, one: int, other: int) -> None:
        self._parent[self._root(one)] = self._root(other)

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number of each item's set, from 0 on."""
        roots = [self._root(item) for item in range(len(self._parent))]
        return np.unique(np.array(roots, np.int64), return_inverse=True)[1].reshape(-1)
