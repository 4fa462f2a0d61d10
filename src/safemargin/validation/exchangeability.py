"""A permutation test: do natural and spread moments with the same proxy lose alike?

A bound is fitted to both kinds and calibrated on the natural ones, which is sound only if the loss
given the proxy has the same distribution for both. If it has, the labels 'natural' and 'spread' are
exchangeable within small strata of neighbouring proxies; the test shuffles them there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.seeding import plain_generator
from safemargin.margins.bounds.calibrated import WIDTH, kernel_percentiles
from safemargin.margins.bounds.conformal import POINTS
from safemargin.margins.bounds.ranks import assign_folds, ranks_in
from safemargin.margins.bounds.sample import Sample

STRATUM = 20
"""The number of neighbours by proxy among which labels are shuffled."""
REGIONS = 5


@dataclass(frozen=True)
class ExchangeabilityTest:
    """The outcome of the test."""

    p_value: float
    """The chance of a difference this large if both kinds lose alike; below 0.05 is a warning."""
    statistic: float
    """The largest difference over n, parts of the range and features, in standard deviations."""
    permutations: int
    informative: int
    """Moments in strata that hold both kinds; the test can use no others."""


def exchangeability_test(
    sample: Sample, *, confidence: float = 0.95, permutations: int = 999, seed: int = 0
) -> ExchangeabilityTest | None:
    """Compare the sizes (ranks) of losses and how often they exceed a pooled β percentile.

    A proxy that looks at n is ordered by its first column. None if there is nothing to compare.
    """
    rows = sample.first_runs
    natural = sample.natural[rows]
    if natural.all() or not natural.any():
        return None
    proxies, losses = sample.proxies[rows, 0], sample.running_maximum[rows]
    # Equal proxies must be ordered neither as in the data nor by their losses.
    marks = assign_folds(sample.take(rows), 997)
    order = np.lexsort((marks, proxies))
    natural, losses = natural[order], losses[order]
    ranks = ranks_in(np.sort(proxies), proxies[order])
    values = _features(ranks, losses, confidence)  # [moments, features]

    count = len(ranks) // STRATUM * STRATUM  # a remainder at the top is left out
    strata = count // STRATUM
    if strata == 0:
        return None
    natural = natural[:count].reshape(strata, STRATUM)
    values = values[:count].reshape(strata, STRATUM, -1)
    values = values - values.mean(axis=1, keepdims=True)
    share = natural.sum(axis=1)  # [strata] natural moments
    mixed = (share > 0) & (share < STRATUM)
    if not mixed.any():
        return None
    # Drawing `share` of 20 without replacement: the variance of their sum.
    spread = (share * (STRATUM - share) / STRATUM)[:, None] * values.var(axis=1, ddof=1)
    region = np.zeros((REGIONS + 1, strata))  # [regions, strata]
    region[0] = 1
    region[1 + np.arange(strata) * REGIONS // strata, np.arange(strata)] = 1
    deviation = np.sqrt(region @ spread)  # [regions, features]
    usable = deviation > 1e-12

    def statistic(labels: np.ndarray) -> Floats:  # [draws, strata, STRATUM] → [draws]
        sums = np.einsum("dsi,sif->dsf", labels.astype(np.float64), values, optimize=True)
        total = np.einsum("rs,dsf->drf", region, sums, optimize=True)
        scaled = np.abs(total) / np.where(usable, deviation, np.inf)
        return np.asarray(scaled.max(axis=(1, 2)))

    observed = float(statistic(natural[None])[0])
    rng = plain_generator(seed)
    larger = 0
    for begin in range(0, permutations, 100):
        draws = min(100, permutations - begin)
        keys = rng.random((draws, strata, STRATUM)).argsort(axis=2).argsort(axis=2)
        larger += int((statistic(keys < share[:, None]) >= observed - 1e-12).sum())
    return ExchangeabilityTest(
        p_value=(larger + 1) / (permutations + 1),
        statistic=observed,
        permutations=permutations,
        informative=int(mixed.sum()) * STRATUM,
    )


def _features(ranks: Floats, losses: Floats, confidence: float) -> Floats:
    """Return for each n the rank of the loss minus its trend, and whether it exceeds a percentile.

    The trend is a running mean over the neighbours by proxy, [moments, 2 · n].
    """
    width = WIDTH * len(ranks) ** -0.2
    no_folds = np.zeros(len(ranks), dtype=np.int64)
    window = 2 * STRATUM + 1
    features = []
    for column in losses.T:
        size = ranks_in(np.sort(column), column)
        trend = np.full(len(size), size.mean())
        if len(size) >= window:
            padded = np.pad(size, STRATUM, mode="reflect")
            trend = np.convolve(padded, np.full(window, 1 / window), mode="valid")
        percentile = kernel_percentiles(ranks, column, no_folds, 0, width, confidence)[0]
        features += [size - trend, column > np.interp(ranks, POINTS, percentile)]
    return np.stack(features, axis=1).astype(np.float64)
