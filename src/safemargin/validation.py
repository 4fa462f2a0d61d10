"""Does it hold: held-out coverage (paper § IV-C, Table I) and percentile error (Table III)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from safemargin.bounds import (
    Sample,
    check_confidence,
    check_sample,
    fit_bound,
    keep_lowest,
)
from safemargin.density import scott_bandwidth
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.records import Tuples

Kernel = Literal["gaussian", "box"]


def percentile_error_bound(
    sample_size: float, confidence: float = 0.95, alpha: float = 0.95, *, tight: bool = True
) -> float:
    """How far the share under the fitted percentile may fall short of β, with confidence α.

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
    """D: how many moments stand behind one proxy value, if proxies are spread evenly.

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
    """Binomial noise √(β(1 − β)/tests): errors of this size mean nothing."""
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
    """M: spread moments in training that were not dropped."""
    low: float
    high: float
    sample_size: float
    """D, halved for the edges."""
    tight_bound: float | None
    """On the percentile error; None when there are no spread moments."""
    loose_bound: float | None


@dataclass(frozen=True)
class Validation:
    """What held-out moments say about a fit."""

    confidence: float
    method: str
    train_share: float
    train_moments: int
    """Kept for the fit, after dropping the highest proxies."""
    test_moments: int
    coverage: tuple[Coverage, ...]  # one per n
    sample_sizes: tuple[SampleSize, ...]  # per kernel (and per n, if the proxy looks at n)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts."""
        data = asdict(self)
        data["coverage"] = list(data["coverage"])
        data["sample_sizes"] = list(data["sample_sizes"])
        return data


def validate(
    natural_proxies: npt.ArrayLike,  # [natural moments] (or [natural moments, n])
    natural_criticalities: npt.ArrayLike,  # [natural moments, n]
    spread_proxies: npt.ArrayLike,  # [spread moments] (or [spread moments, n])
    spread_criticalities: npt.ArrayLike,  # [spread moments, n]
    n_values: Sequence[int],
    *,
    confidence: float = 0.95,
    method: str = "paper",
    train_share: float = 0.8,
    minimum_bandwidth: float = 0.0,
    drop_highest: float = 0.05,
    bins: int = 200,
    alpha: float = 0.95,
) -> Validation:
    """Fit on the first share of each phase, in collection order; test on the rest (no lift)."""
    if not 0 < train_share < 1:
        raise InvalidInput(f"train_share must lie between 0 and 1, got {train_share}")
    natural = np.asarray(natural_criticalities), np.asarray(natural_proxies)
    spread = np.asarray(spread_criticalities), np.asarray(spread_proxies)
    parts = [part for part in (natural, spread) if len(part[0])]
    if not parts:
        raise InvalidInput("there is nothing to validate: no natural and no spread moments")
    for losses, values in parts:
        if len(losses) != len(values):
            raise InvalidInput(
                "a phase needs one proxy for each row of its criticalities, "
                f"got shapes {values.shape} and {losses.shape}"
            )
        if losses.shape[1:] != parts[0][0].shape[1:] or values.shape[1:] != parts[0][1].shape[1:]:
            raise InvalidInput(
                "natural and spread moments must have the same columns, got criticalities "
                f"{parts[0][0].shape} and {losses.shape}, proxies {parts[0][1].shape} and "
                f"{values.shape}"
            )
    whole = check_sample(
        np.concatenate([values for _, values in parts]),
        np.concatenate([losses for losses, _ in parts]),
        n_values,
    )
    naturals, spreads = len(natural[0]), len(spread[0])
    is_natural = np.arange(naturals + spreads) < naturals  # [moments]
    place = np.concatenate([np.arange(naturals), np.arange(spreads)])  # [moments] within the phase
    train_naturals = math.floor(train_share * naturals + 1e-9)
    train_spreads = math.floor(train_share * spreads + 1e-9)
    train = place < np.where(is_natural, train_naturals, train_spreads)  # [moments]
    test = ~train
    if not test.any():
        raise InvalidInput(
            f"nothing is left to test on: {len(train)} moments with train_share={train_share}"
        )
    bound = fit_bound(
        whole.proxies[train] if whole.looks_at_n else whole.proxies[train, 0],
        whole.criticalities[train],
        whole.n_values,
        confidence=confidence,
        method=method,
        minimum_bandwidth=minimum_bandwidth,
        lift=False,
        drop_highest=drop_highest,
        bins=bins,
    )
    proxies = whole.proxies[test]  # [tests, n]
    limits = bound.at(proxies if whole.looks_at_n else proxies[:, 0])  # [tests, n]
    succeeded = whole.criticalities[test] <= limits  # [tests, n]
    above = proxies > bound.grid[:, -1]  # [tests, n]
    tests = int(test.sum())
    of_natural = is_natural[test]
    coverage = tuple(
        Coverage(
            n=n,
            tested=tests,
            succeeded=int(succeeded[:, column].sum()),
            success_rate=float(succeeded[:, column].mean()),
            percentile_error=confidence - float(succeeded[:, column].mean()),
            standard_error=math.sqrt(confidence * (1 - confidence) / tests),
            natural_tested=int(of_natural.sum()),
            natural_succeeded=int(succeeded[of_natural, column].sum()),
            spread_tested=int((~of_natural).sum()),
            spread_succeeded=int(succeeded[~of_natural, column].sum()),
            above_range=int(above[:, column].sum()),
        )
        for column, n in enumerate(whole.n_values)
    )
    return Validation(
        confidence=confidence,
        method=method,
        train_share=train_share,
        train_moments=len(keep_lowest(whole.proxies[train, 0], drop_highest)),
        test_moments=tests,
        coverage=coverage,
        sample_sizes=_sample_sizes(whole, train, is_natural, drop_highest, confidence, alpha),
    )


def validate_tuples(tuples: Tuples, **options: Any) -> Validation:
    """`validate` for the moments of a study; the options are the same."""
    order = np.argsort(tuples.indices, kind="stable")  # collection order within a phase
    natural, spread = (order[tuples.phases[order] == phase] for phase in ("natural", "spread"))
    return validate(
        tuples.proxies[natural],
        tuples.criticalities[natural],
        tuples.proxies[spread],
        tuples.criticalities[spread],
        tuples.n_values,
        **options,
    )


def _sample_sizes(
    whole: Sample,
    train: npt.NDArray[np.bool_],  # [moments]
    is_natural: npt.NDArray[np.bool_],  # [moments]
    drop_highest: float,
    confidence: float,
    alpha: float,
) -> tuple[SampleSize, ...]:
    rows = []
    for column, n in enumerate(whole.n_values if whole.looks_at_n else (None,)):
        proxies = whole.proxies[train, column]
        keep = keep_lowest(proxies, drop_highest)
        kept = proxies[keep]
        bandwidth, low, high = scott_bandwidth(kept), float(kept.min()), float(kept.max())
        spread_kept = int((~is_natural[train][keep]).sum())
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
