"""The paper's validation tables (§ IV-C): held-out coverage (I) and percentile error (III)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from safemargin.errors import InvalidInput, did_you_mean
from safemargin.margins.bounds.paper import keep_lowest
from safemargin.margins.bounds.sample import Booleans, Sample, check_moment_count
from safemargin.margins.bounds.table import check_confidence
from safemargin.margins.density import scott_bandwidth
from safemargin.margins.methods import fit_sample

Kernel = Literal["gaussian", "box"]


def percentile_error_bound(
    sample_size: float, confidence: float = 0.95, alpha: float = 0.95, *, tight: bool = True
) -> float:
    """Return how far the share below the fitted percentile may fall short of β, at confidence α.

    Tight: β − β* where β − β* = z √(β*(1 − β*) / D), solved for β*. Loose: 0.5 z / √D.
    z is one-sided: 1.645 at α = 0.95. D is `sample_size`.
    """
    check_confidence(confidence)
    if not 0.5 <= alpha < 1:
        raise InvalidInput(f"alpha must be at least 0.5 and below 1, got {alpha}")
    if not (sample_size > 0 and math.isfinite(sample_size)):
        raise InvalidInput(f"the sample size must be above 0, got {sample_size}")
    z = NormalDist().inv_cdf(alpha)
    if not tight:
        return 0.5 * z / math.sqrt(sample_size)
    # (β − x)² = k x(1 − x) with k = z²/D is (1 + k) x² − (2β + k) x + β² = 0; the root below β.
    k = z**2 / sample_size
    root = math.sqrt(k * (k + 4 * confidence * (1 - confidence)))
    return confidence - (2 * confidence + k - root) / (2 * (1 + k))


def local_sample_size(
    moments: int,
    bandwidth: float,
    low: float,
    high: float,
    *,
    kernel: Kernel = "gaussian",
    edge: bool = True,
) -> float:
    """Return D, the number of moments behind one proxy value if proxies are spread evenly.

    Box kernel M·H_p / (p_max − p_min); Gaussian √(2π) times that; half of it at the `edge`.
    """
    if kernel not in get_args(Kernel):
        known = did_you_mean(str(kernel), get_args(Kernel))
        raise InvalidInput(f"the kernel {kernel!r} is unknown; {known}")
    if not (moments >= 0 and bandwidth > 0 and high > low):
        raise InvalidInput(
            "a local sample size needs moments ≥ 0, bandwidth > 0 and low < high, "
            f"got {moments}, {bandwidth}, {low} and {high}"
        )
    size = moments * bandwidth / (high - low)
    if kernel == "gaussian":
        size *= math.sqrt(2 * math.pi)
    return size / 2 if edge else size


@dataclass(frozen=True)
class Coverage:
    """Table I: how often held-out moments stayed under the fitted bound, for one n."""

    n: int
    tested: int
    succeeded: int
    success_rate: float
    percentile_error: float
    """β − success rate: above 0, the bound was broken more often than promised."""
    standard_error: float
    """The binomial noise √(β(1 − β)/tests): errors of this size mean nothing."""
    natural_tested: int
    natural_succeeded: int
    spread_tested: int
    spread_succeeded: int
    above_range: int
    """Tests above the highest fitted proxy; judged at the last bin, as in the paper."""


@dataclass(frozen=True)
class SampleSize:
    """Table III: how much data stands behind one proxy value, and what error that allows."""

    n: int | None
    """None: the same for every n."""
    kernel: Kernel
    bandwidth: float
    """H_p of the training moments."""
    spread_moments: int
    """M, the spread moments in training that were not dropped."""
    low: float
    high: float
    sample_size: float
    """D, halved as at the edges."""
    tight_bound: float | None
    """The bound on the percentile error; None if there are no spread moments."""
    loose_bound: float | None


def table_one(
    whole: Sample, train: Booleans, confidence: float, method: str, options: dict[str, Any]
) -> tuple[Coverage, ...]:
    """Return Table I: fit to the training rows without lift, test on the others."""
    check_moment_count(len(np.unique(whole.moments[train])))
    bound = fit_sample(
        whole.take(train), method=method, confidence=confidence, **{**options, "lift": False}
    )
    test = ~train & whole.first_runs  # [rows]
    proxies = whole.proxies[test]  # [tests, n]
    limits = bound.at(proxies if whole.looks_at_n else proxies[:, 0])  # [tests, n]
    # The paper bounds each n by itself; the other methods bound the largest loss up to n.
    judged = whole.losses if method == "paper" else whole.running_maximum
    succeeded = judged[test] <= limits  # [tests, n]
    above = proxies > bound.grid[:, -1]  # [tests, n]
    tests = len(proxies)
    of_natural = whole.natural[test]
    rates = succeeded.mean(axis=0)  # [n]
    return tuple(
        Coverage(
            n=n,
            tested=tests,
            succeeded=int(succeeded[:, column].sum()),
            success_rate=float(rates[column]),
            percentile_error=confidence - float(rates[column]),
            standard_error=math.sqrt(confidence * (1 - confidence) / tests),
            natural_tested=int(of_natural.sum()),
            natural_succeeded=int(succeeded[of_natural, column].sum()),
            spread_tested=int((~of_natural).sum()),
            spread_succeeded=int(succeeded[~of_natural, column].sum()),
            above_range=int(above[:, column].sum()),
        )
        for column, n in enumerate(whole.n_values)
    )


def sample_sizes(
    whole: Sample,
    train: Booleans,  # [rows]
    drop_highest: float,
    confidence: float,
    alpha: float,
) -> tuple[SampleSize, ...]:
    """Return Table III for each kernel (and each n, if the proxy looks at n)."""
    rows = []
    moments = train & whole.first_runs  # [rows] one for each training moment
    spread = ~whole.natural[moments]  # [training moments]
    for column, n in enumerate(whole.n_values if whole.looks_at_n else (None,)):
        proxies = whole.proxies[moments, column]
        keep = keep_lowest(proxies, drop_highest)
        kept = proxies[keep]
        bandwidth, low, high = scott_bandwidth(kept), float(kept.min()), float(kept.max())
        spread_kept = int(spread[keep].sum())
        for kernel in get_args(Kernel):
            size = local_sample_size(spread_kept, bandwidth, low, high, kernel=kernel)
            tight, loose = (
                percentile_error_bound(size, confidence, alpha, tight=tight) if size else None
                for tight in (True, False)
            )
            rows.append(
                SampleSize(n, kernel, bandwidth, spread_kept, low, high, size, tight, loose)
            )
    return tuple(rows)
