"""The default bound: a kernel percentile in the rank of the proxy, then calibrated.

Losses are not smoothed: that would blur them, which costs margin wherever the size of losses grows
with the proxy. The kernel runs over ranks, not values, so a proxy with a long tail needs no
truncation, and a monotone transform of the proxy changes nothing.
"""

from __future__ import annotations

import numpy as np

from safemargin.core.records import Floats
from safemargin.margins.bounds.conformal import POINTS
from safemargin.margins.bounds.sample import Integers

CELLS = 128
"""Ranks are rounded to this many cells; the kernel is many times wider than one."""
BLOCKS = 64
WIDTH = 0.145
"""The bandwidth is WIDTH · M^(−1/5), in ranks."""
FLOOR = 0.05
"""The scale is at least this share of the distance from median to percentile of all losses."""


def kernel_curve(
    ranks: Floats, losses: Floats, folds: Integers, fold_count: int, confidence: float
) -> tuple[Floats, Floats]:
    """Return the weighted β percentile at each rank, and its distance from the weighted median."""
    width = WIDTH * len(ranks) ** -0.2
    percentile, median = (
        kernel_percentiles(ranks, losses, folds, fold_count, bandwidth, level)
        for bandwidth, level in ((width, confidence), (2 * width, 0.5))
    )
    percentile = np.maximum.accumulate(percentile, axis=1)
    return percentile, np.maximum(percentile - median, scale_floor(losses, confidence))


def scale_floor(losses: Floats, confidence: float) -> float:
    """Return the least scale, which is never 0, so that a score is always a number."""
    low, high = np.quantile(losses, [0.5, max(confidence, 0.75)])
    size = high - low or np.ptp(losses) or 1.0
    return float(FLOOR * size)


def kernel_percentiles(
    ranks: Floats,  # [rows]
    losses: Floats,  # [rows]
    folds: Integers,  # [rows]
    fold_count: int,
    bandwidth: float,
    level: float,
) -> Floats:
    """Return the smallest loss at which the Gaussian weights around a rank reach the level.

    [fold count + 1, points]: one curve without the rows of each fold, and a last one of all rows.
    The weights are summed over 64 blocks of rows in the order of their losses, for all folds at
    once (a fold is left out by subtraction); only the block in which the level is reached is then
    searched row by row.
    """
    count = len(losses)
    order = np.argsort(losses, kind="stable")
    cells = np.minimum((ranks[order] * CELLS).astype(np.int64), CELLS - 1)  # [rows]
    fold = folds[order] if fold_count else np.zeros(count, dtype=np.int64)
    centres = (np.arange(CELLS) + 0.5) / CELLS
    exponents = -0.5 * ((POINTS[:, None] - centres) / bandwidth) ** 2  # [points, cells]
    # Relative to the nearest cell with data: far from all data, weights must not vanish together.
    nearest = exponents[:, np.unique(cells)].max(axis=1, keepdims=True)
    kernel = np.exp(np.minimum(exponents - nearest, 0.0))

    size = -(-count // BLOCKS)  # rows in a block
    block = np.arange(count) // size
    blocks = int(block[-1]) + 1
    kinds = max(fold_count, 1)
    part = fold * blocks + block  # [rows] which block of which fold
    rows = np.bincount(part, minlength=kinds * blocks)
    weights = np.zeros((len(POINTS), count + 1))  # one more: a part at the end may be empty
    weights[:, :count] = kernel[:, cells[np.argsort(part, kind="stable")]]
    sums = np.add.reduceat(weights, np.cumsum(rows) - rows, axis=1)
    sums[:, rows == 0] = 0.0
    sums = sums.T.reshape(kinds, blocks, len(POINTS))
    whole = sums.sum(axis=0, keepdims=True)
    kept = np.concatenate([whole - sums, whole]) if fold_count else whole
    reached = np.cumsum(kept, axis=1)  # [folds + 1, blocks, points]
    goal = level * (1 - 1e-9) * reached[:, -1]  # [folds + 1, points]
    found = np.argmax(reached >= goal[:, None], axis=1)  # [folds + 1, points]
    before = np.where(
        found > 0, np.take_along_axis(reached, np.maximum(found - 1, 0)[:, None], axis=1)[:, 0], 0.0
    )

    inside = np.minimum(found[..., None] * size + np.arange(size), count - 1)
    near = kernel[np.arange(len(POINTS))[:, None], cells[inside]]  # [folds + 1, points, size]
    if fold_count:
        near = near * (fold[inside] != np.arange(fold_count + 1)[:, None, None])
    enough = before[..., None] + np.cumsum(near, axis=2) >= goal[..., None]
    enough[..., -1] = True  # reached within this block, whatever rounding says
    row = np.take_along_axis(inside, np.argmax(enough, axis=2)[..., None], axis=2)[..., 0]
    return np.asarray(losses[order][row])
