"""The 2d kernel density of (proxy, true criticality) for one n (paper § III-D, appendix B).

The kernel is a product of two Gaussians, one per axis, so the whole estimate is one matrix product.
It is not `scipy.stats.gaussian_kde`, whose kernel follows the full covariance of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.table import check_confidence


@dataclass(frozen=True, eq=False)
class Density:
    """The distribution of true criticality given the proxy, on a grid."""

    proxy: Floats  # [bins] from the lowest to the highest proxy value
    criticality: Floats  # [bins] from min − 3H to max + 3H
    weights: Floats  # [criticality bins, proxy bins], each column sums to 1
    proxy_bandwidth: float
    """H_p, the standard deviation of the horizontal kernel."""
    criticality_bandwidth: float
    """H_c*, the standard deviation of the vertical kernel; 0 when all criticalities are equal."""

    @property
    def mean(self) -> Floats:
        """The mean true criticality at each proxy bin, [proxy bins]."""
        # A weighted mean lies within the axis; rounding alone could carry it outside.
        mean = self.criticality @ self.weights
        return np.asarray(np.clip(mean, self.criticality[0], self.criticality[-1]))

    @property
    def median(self) -> Floats:
        """The median true criticality at each proxy bin, [proxy bins]."""
        return self.percentile(0.5)

    def percentile(self, beta: float) -> Floats:
        """Return b*_β, the criticality that a share β stays at or below, [proxy bins].

        This is the value of the first bin at which the cumulative weight reaches β: a cautious
        percentile of the weights on the grid, at most one bin above an interpolated one. The
        percentile of the continuous density on this axis is within half a bin of it.
        """
        check_confidence(beta)
        cumulative = np.cumsum(self.weights, axis=0)  # [criticality bins, proxy bins]
        cumulative /= cumulative[-1]  # ends in exactly 1, so that β is always reached
        return np.asarray(self.criticality[np.argmax(cumulative >= beta, axis=0)])


def scott_bandwidth(values: Floats) -> float:
    """Return H = stdev* · M^(−1/6): Scott's rule for two dimensions with Bessel's correction."""
    low, spread = values.min(), np.ptp(values)
    if spread == 0:
        return 0.0  # exactly; rounding of the mean would leave a small rest
    scaled = (values - low) / spread  # neither overflows nor underflows when squared
    return float(np.std(scaled, ddof=1) * spread * len(values) ** (-1 / 6))


def estimate_density(
    proxies: Floats,  # [moments]
    criticalities: Floats,  # [moments]
    *,
    bins: int = 200,
    minimum_bandwidth: float = 0.0,
) -> Density:
    """Estimate the paper's density for one n.

    `minimum_bandwidth` (ε̂_sampling / t_α) limits the vertical bandwidth from below.
    """
    if bins < 2:
        raise InvalidInput(f"bins must be at least 2, got {bins}")
    if not (minimum_bandwidth >= 0 and np.isfinite(minimum_bandwidth)):
        raise InvalidInput(f"minimum_bandwidth must be at least 0, got {minimum_bandwidth}")
    if proxies.ndim != 1 or proxies.shape != criticalities.shape or len(proxies) < 2:
        raise InvalidInput(
            "a density needs two or more proxies and as many criticalities, both [moments]; "
            f"got shapes {proxies.shape} and {criticalities.shape}"
        )
    proxy_axis = np.linspace(proxies.min(), proxies.max(), bins)  # [bins]
    if not np.all(np.diff(proxy_axis) > 0):
        raise InvalidInput(
            f"all {len(proxies)} proxies are equal ({proxies[0]:g}): margins need a proxy that "
            "varies; choose another proxy or collect more varied episodes"
        )
    proxy_bandwidth = scott_bandwidth(proxies)
    bandwidth = max(scott_bandwidth(criticalities), float(minimum_bandwidth))
    if bandwidth == 0:  # all criticalities are equal: every percentile is that value
        return Density(
            proxy=proxy_axis,
            criticality=np.full(bins, criticalities[0]),
            weights=np.full((bins, bins), 1 / bins),
            proxy_bandwidth=proxy_bandwidth,
            criticality_bandwidth=0.0,
        )
    criticality_axis = np.linspace(
        criticalities.min() - 3 * bandwidth, criticalities.max() + 3 * bandwidth, bins
    )  # [bins]

    # log K_p and log K_c*; the factors in front of the kernels cancel in the normalisation.
    horizontal = -0.5 * ((proxy_axis - proxies[:, None]) / proxy_bandwidth) ** 2  # [moments, bins]
    vertical = -0.5 * ((criticality_axis - criticalities[:, None]) / bandwidth) ** 2
    # Scale so that the largest term of every column is 1: a column far from every datum would
    # otherwise come out as 0/0. What is taken from a datum's vertical kernel is added to its
    # horizontal one; what is taken from a column cancels when the column is normalised.
    peaks = vertical.max(axis=1, keepdims=True)  # [moments, 1]
    horizontal += peaks
    horizontal -= horizontal.max(axis=0)
    weights = np.exp(vertical - peaks).T @ np.exp(horizontal)  # [criticality bins, proxy bins]
    weights /= weights.sum(axis=0)
    return Density(
        proxy=proxy_axis,
        criticality=criticality_axis,
        weights=weights,
        proxy_bandwidth=proxy_bandwidth,
        criticality_bandwidth=bandwidth,
    )
