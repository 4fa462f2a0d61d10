"""The paper's bound (§ III-D): the β percentile of a 2d kernel density, n by n."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Integers, Options, Sample
from safemargin.margins.bounds.table import Bound
from safemargin.margins.density import Density, estimate_density

GUARANTEE = (
    "none in finite samples: the percentile of a kernel density of the measured moments, for each "
    "n by itself; over the chain of all n' ≤ n it fails more often"
)


def keep_lowest(proxies: Floats, drop_highest: float) -> Integers:
    """Return the indices of the moments that stay when the top share is dropped: 1,000 → 950.

    ⌊share · M⌋ are dropped; among equal proxies, the later ones first.
    """
    if not 0 <= drop_highest < 1:
        raise InvalidInput(f"drop_highest must be at least 0 and below 1, got {drop_highest}")
    dropped = int(np.floor(drop_highest * len(proxies) + 1e-9))  # 0.29 · 100 is 28.999…
    order = np.argsort(proxies, kind="stable")
    return np.sort(order[: len(proxies) - dropped])


@lru_cache(maxsize=1)  # a comparison fits with and without lift, one after the other
def paper_densities(
    sample: Sample, *, drop_highest: float, bins: int, minimum_bandwidth: float
) -> tuple[Density, ...]:
    """Estimate one density per n, without the moments of the highest proxies."""
    return tuple(
        estimate_density(
            proxies[keep := keep_lowest(proxies, drop_highest)],
            losses[keep],
            bins=bins,
            minimum_bandwidth=minimum_bandwidth,
        )
        for proxies, losses in zip(sample.proxies.T, sample.losses.T, strict=True)
    )


def fit_paper(sample: Sample, options: Options) -> Bound:
    """Take the β percentile of each column of the density, lifted to rise with p."""
    densities = paper_densities(
        sample,
        drop_highest=options.drop_highest,
        bins=options.bins,
        minimum_bandwidth=options.minimum_bandwidth,
    )
    upper = np.stack([density.percentile(options.confidence) for density in densities])
    if options.lift:
        upper = np.maximum.accumulate(upper, axis=1)
    runs = len(sample) // sample.moment_count
    given = sample.moment_count
    used = len(keep_lowest(sample.proxies[:, 0], options.drop_highest)) // runs
    return sample.bound(
        options,
        method="paper",
        grid=np.stack([density.proxy for density in densities]),
        upper=upper,
        details={
            "bounds": "the loss at each n by itself",
            "guarantee": GUARANTEE,
            "moments_given": given,
            "moments_used": used,
            "moments_dropped": given - used,
            "drop_highest": options.drop_highest,
            "highest_proxy_used": [float(density.proxy[-1]) for density in densities],
            "proxy_bandwidths": [density.proxy_bandwidth for density in densities],
            "criticality_bandwidths": [density.criticality_bandwidth for density in densities],
            "minimum_bandwidth": options.minimum_bandwidth,
            "lift": options.lift,
        },
    )
