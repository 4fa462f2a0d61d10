"""The moments of a sample in the order of their proxies: ranks, a grid at even ranks, and folds."""

from __future__ import annotations

import itertools
import zlib

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Integers, Sample


def check_groups(sample: Sample, fewest: int = 2) -> None:
    """Refuse moments that come from too few groups."""
    if (count := len(np.unique(sample.groups))) < fewest:
        whole = "one group (episode)" if count == 1 else f"{count} groups (episodes)"
        raise InvalidInput(
            f"all moments belong to {whole}, and it takes {fewest} to judge each by a fit without "
            "it; collect more varied episodes"
        )


def assign_folds(sample: Sample, fold_count: int) -> Integers:
    """Return the fold of each row, [rows]: groups stay whole, and each fold covers all proxies.

    Groups are dealt out in the order of their proxies, so the folds depend neither on the order of
    the moments nor on the proxy's scale. Equal proxies are ordered by a checksum of their losses,
    which is as good as random and reproducible.
    """
    marks = np.array([zlib.crc32(row.tobytes()) for row in np.ascontiguousarray(sample.losses)])
    order = np.lexsort((marks, *sample.proxies.T[::-1]))  # [rows]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    first = np.full(sample.groups.max() + 1, len(order))  # [groups]
    np.minimum.at(first, sample.groups, rank)
    turn = np.empty(len(first), dtype=np.int64)
    turn[np.argsort(first)] = np.arange(len(first))
    # Forwards and backwards in turn; otherwise fold 0 would always hold the lowest of each ten.
    lap, seat = np.divmod(turn, fold_count)
    return np.where(lap % 2 == 0, seat, fold_count - 1 - seat)[sample.groups]


def ranks_in(reference: Floats, values: Floats) -> Floats:
    """Return the share of the sorted reference below each value; ties count half."""
    low = np.searchsorted(reference, values, side="left")
    high = np.searchsorted(reference, values, side="right")
    return (low + high) / (2 * len(reference))


def proxy_grid(proxies: Floats, bins: int) -> Floats:
    """Return increasing proxy values from the lowest to the highest, at even ranks, [bins]."""
    values = np.unique(np.quantile(proxies, np.linspace(0, 1, bins), method="nearest"))
    gaps = len(values) - 1
    if gaps == 0 or not np.all(np.diff(values) > 0):
        raise InvalidInput(
            f"all {len(proxies)} proxies are equal ({proxies[0]:g}): margins need a proxy that "
            "varies; choose another proxy or collect more varied episodes"
        )
    missing = bins - len(values)  # equal proxies: fill the gaps between distinct ones
    evenly = [missing // gaps + (gap < missing % gaps) for gap in range(gaps)]
    widest = [missing * (gap == np.argmax(np.diff(values))) for gap in range(gaps)]
    for extra in (evenly, widest):  # two proxies can be too close for a third between them
        pieces = [
            np.linspace(low, high, extra[gap] + 1, endpoint=False)
            for gap, (low, high) in enumerate(itertools.pairwise(values))
        ]
        grid = np.concatenate([*pieces, values[-1:]])
        if np.all(np.diff(grid) > 0):
            return grid
    raise InvalidInput(
        f"the {len(values)} distinct proxies from {values[0]!r} to {values[-1]!r} are too close "
        "together to tell apart; choose another proxy"
    )
