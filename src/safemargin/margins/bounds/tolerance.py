"""A one-sided tolerance limit: a binomial upper limit on the percentile in a forward window.

At each proxy p, the window holds the next moments at p and above. Of k independent losses, the
r-th smallest is no lower than their β percentile with probability 1 − δ, where r is the smallest
number with P(Bin(k, β) < r) ≥ 1 − δ. If losses do not become smaller as the proxy rises, the losses
in the window are no smaller than those at p, so the limit holds at p itself: at each proxy value,
not only on average, and with known assurance over repeated studies. The price of that promise is
small margins. Where fewer than ⌈ln δ / ln β⌉ moments lie ahead (59 at β = 0.95 and δ = 0.05, 299
at 0.99) there is no bound.
"""

from __future__ import annotations

import math

import numpy as np

from safemargin.core.records import Floats
from safemargin.margins.bounds.ranks import proxy_grid
from safemargin.margins.bounds.sample import Options, Sample
from safemargin.margins.bounds.table import Bound

WINDOW = 0.1
"""The window holds this share of all moments, or as many as are needed."""


def window_needed(confidence: float, assurance: float) -> int:
    """Return how many moments a window must hold: the largest of k is a limit if β^k ≤ δ."""
    return math.ceil(math.log(1 - assurance) / math.log(confidence) - 1e-9)


def fit_tolerance(sample: Sample, options: Options) -> Bound:
    """Fit b_n ≥ the β percentile of C_n with probability `assurance` at each proxy value."""
    rows = sample.first_runs
    targets = sample.running_maximum[rows]  # [moments, n]
    needed = window_needed(options.confidence, options.assurance)
    window = max(needed, round(WINDOW * len(targets)))
    grids, uppers = [], []
    for column in range(len(sample.n_values)):
        proxies = sample.proxies[rows, column]
        grid = proxy_grid(proxies, options.bins)
        upper = _limits(proxies, targets[:, column], grid, window, needed, options)
        grids.append(grid)
        uppers.append(np.maximum.accumulate(upper) if options.lift else upper)
    notes = []
    if not np.isfinite(uppers[0]).any():
        notes.append(
            f"no bound, so every margin is 0: a confidence of {options.confidence:g} with "
            f"assurance {options.assurance:g} needs {needed} moments in a window, and there are "
            f"{len(targets)}; collect more"
        )
    return sample.bound(
        options,
        method="tolerance",
        grid=np.stack(grids),
        upper=np.stack(uppers),
        details={
            "bounds": "the largest loss over all n' ≤ n",
            "guarantee": (
                f"at each proxy value, with probability {options.assurance:g} over studies, if "
                "losses do not become smaller as the proxy rises and moments are independent"
            ),
            "assurance": options.assurance,
            "moments_given": sample.moment_count,
            "moments_needed_in_a_window": needed,
            "moments_in_a_window": window,
            "lift": options.lift,
            "notes": notes,
        },
    )


def _limits(
    proxies: Floats, losses: Floats, grid: Floats, window: int, needed: int, options: Options
) -> Floats:
    """Return the upper limit at each grid value, [bins]; infinite if the window is too short."""
    from scipy.stats import binom  # here: looking margins up must not need scipy

    order = np.argsort(proxies, kind="stable")
    ahead, sorted_losses = proxies[order], losses[order]
    starts = np.searchsorted(ahead, grid, side="left")
    ends = np.minimum(starts + window, len(ahead))
    ends = np.searchsorted(ahead, ahead[ends - 1], side="right")  # equal proxies stay together
    sizes = ends - starts
    indices = binom.ppf(options.assurance, sizes, options.confidence).astype(np.int64)
    upper = np.full(len(grid), np.inf)
    for column in np.flatnonzero((sizes >= needed) & (indices < sizes)):
        inside = sorted_losses[starts[column] : ends[column]]
        upper[column] = np.partition(inside, indices[column])[indices[column]]
    return upper
