"""The best rising percentile curve (isotonic percentile regression), then calibrated.

b(j) = max over a ≤ j of min over c ≥ j of the percentile of all losses in the cells a … c. Among
all curves that rise with the proxy, it has the least pinball loss (Robertson and Wright 1980).
There is no bandwidth to choose; where losses do not rise with the proxy, the curve is flat.
"""

from __future__ import annotations

import numpy as np

from safemargin.core.records import Floats
from safemargin.margins.bounds.calibrated import scale_floor
from safemargin.margins.bounds.conformal import POINTS
from safemargin.margins.bounds.sample import Integers

CELLS = 40
"""The number of cells of equal rank that moments are gathered in."""


def isotonic_curve(
    ranks: Floats, losses: Floats, folds: Integers, fold_count: int, confidence: float
) -> tuple[Floats, Floats]:
    """Return the rising β percentile at each rank, and its distance from the rising median."""
    at_points = np.minimum((POINTS * CELLS).astype(np.int64), CELLS - 1)
    order = np.argsort(losses, kind="stable")
    cells = np.minimum((ranks[order] * CELLS).astype(np.int64), CELLS - 1)
    fold, sorted_losses = folds[order], losses[order]
    curves = []
    for left_out in range(fold_count + 1):
        kept = (fold != left_out) | (left_out == fold_count)
        curves.append(
            rising_percentiles(cells[kept], sorted_losses[kept], [confidence, 0.5])[:, at_points]
        )
    percentile, median = np.stack(curves, axis=1)  # each [folds + 1, points]
    return percentile, np.maximum(percentile - median, scale_floor(losses, confidence))


def rising_percentiles(cells: Integers, losses: Floats, levels: list[float]) -> Floats:
    """Return a rising percentile curve for each level, [levels, cells]; `losses` are sorted."""
    count = len(losses)
    seen = np.zeros((count + 1, CELLS + 1), dtype=np.int64)
    seen[np.arange(1, count + 1), cells + 1] = 1
    # seen[i, c]: how many of the i smallest losses lie in the cells before c
    seen = seen.cumsum(axis=0).cumsum(axis=1)
    first, last = np.meshgrid(np.arange(CELLS), np.arange(1, CELLS + 1), indexing="ij")
    size = seen[-1, last] - seen[-1, first]  # [first, last]
    curves = []
    for level in levels:
        goal = np.ceil(level * size - 1e-9)
        low, high = np.zeros_like(size), np.full_like(size, count)  # seen[low] < goal ≤ seen[high]
        for _ in range(int(count).bit_length()):
            middle = (low + high) // 2
            enough = seen[middle, last] - seen[middle, first] >= goal
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        value = losses[np.maximum(high, 1) - 1]
        value = np.where((size > 0) & (last > first), value, np.inf)
        # min over c ≥ j: a running minimum from the right; then max over a ≤ j, where one exists.
        least = np.minimum.accumulate(value[:, ::-1], axis=1)[:, ::-1]  # [first, last]
        # A start with no losses after it gives no value; some earlier start always does.
        usable = np.where(np.isfinite(least) & (last > first), least, -np.inf)
        curves.append(usable.max(axis=0))
    return np.stack(curves)
