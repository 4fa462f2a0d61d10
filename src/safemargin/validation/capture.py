"""What a ranking is worth to people who can look at a few decisions: the regret they would see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.core.seeding import plain_generator

SHARES = (0.01, 0.05, 0.1)
"""The shares of decisions that people might look at."""

RESAMPLES = 500


@dataclass(frozen=True)
class Captured:
    """The share of all regret that lies in some share of decisions, with its 95 % band."""

    share: float
    """Of decisions looked at."""
    captured: float
    low: float
    high: float


def captured(values: Floats, gains: Floats, share: float) -> float:
    """Return the share of all gains that lies in the moments with the highest values.

    Exactly `share` of the moments count; of moments with equal values at the limit, each counts in
    part. NaN where there is nothing to gain.
    """
    total = float(gains.sum())
    if total <= 0:
        return float("nan")
    wanted = share * len(values)
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    limit = ranked[min(int(wanted), len(ranked) - 1)]
    above, beside = values > limit, values == limit
    part = (wanted - int(above.sum())) / max(int(beside.sum()), 1)
    return float(gains[above].sum() + part * gains[beside].sum()) / total


def captured_with_bands(
    values: Floats,  # [moments]
    gains: Floats,  # [moments]
    groups: npt.NDArray[np.int64],  # [moments] what belongs to one game or play
    shares: tuple[float, ...] = SHARES,
    *,
    seed: int = 0,
) -> tuple[Captured, ...]:
    """Return what a ranking captures, with bootstrap bands over groups."""
    rng = plain_generator(seed)
    names, inverse = np.unique(groups, return_inverse=True)
    rows_of = [np.flatnonzero(inverse == group) for group in range(len(names))]
    draws = np.full((RESAMPLES, len(shares)), np.nan)
    for draw in draws:
        drawn = rng.integers(len(names), size=len(names))
        rows = np.concatenate([rows_of[group] for group in drawn])
        draw[:] = [captured(values[rows], gains[rows], share) for share in shares]
    known = draws[~np.isnan(draws).any(axis=1)]
    bands = np.full((2, len(shares)), np.nan)
    if len(known):
        bands = np.quantile(known, [0.025, 0.975], axis=0)
    return tuple(
        Captured(share, captured(values, gains, share), float(low), float(high))
        for share, low, high in zip(shares, *bands, strict=True)
    )
