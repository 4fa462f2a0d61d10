"""Gradient-boosted percentiles, then calibrated; needs scikit-learn (safemargin[methods])."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import MissingExtra
from safemargin.margins.bounds.calibrated import WIDTH, kernel_percentiles, scale_floor
from safemargin.margins.bounds.conformal import POINTS
from safemargin.margins.bounds.sample import Integers

TREES = 16
LEAVES = 4
LEARNING_RATE = 0.35


def one_thread() -> AbstractContextManager[object]:
    """Restrict matrices and trees to one core where possible: on small data, threads only wait."""
    try:
        from threadpoolctl import threadpool_limits  # comes with scikit-learn
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def boosted_curve(
    ranks: Floats, losses: Floats, folds: Integers, fold_count: int, confidence: float
) -> tuple[Floats, Floats]:
    """Return the β percentile by boosted trees, and its distance from the kernel's median."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise MissingExtra("method 'boosted' (scikit-learn)", extra="methods") from error
    order = np.lexsort((losses, ranks))  # sums must not depend on the order of the moments
    ranks, losses, folds = ranks[order], losses[order], folds[order]
    model = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=confidence,
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=LEARNING_RATE,
        max_bins=64,
        early_stopping=False,
        random_state=0,
    )
    curves = []
    with one_thread():
        for left_out in range(fold_count + 1):
            kept = (folds != left_out) | (left_out == fold_count)
            model.fit(ranks[kept, None], losses[kept])
            curves.append(model.predict(POINTS[:, None]))
    percentile = np.maximum.accumulate(np.stack(curves), axis=1)
    width = 2 * WIDTH * len(ranks) ** -0.2
    median = kernel_percentiles(ranks, losses, folds, fold_count, width, 0.5)
    return percentile, np.maximum(percentile - median, scale_floor(losses, confidence))
