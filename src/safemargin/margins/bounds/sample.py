"""What a fit is given: measured moments, checked, and the options of the methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, did_you_mean

Estimand = Literal["mean", "single-run"]
"""Whose loss is bounded: the mean over random actions at a moment (the paper's true criticality),
or that of one run (what one person will see)."""

ESTIMANDS = {"mean": "mean loss at a moment", "single-run": "loss of a single run"}
"""What titles of tables and pictures call each estimand."""

Calibration = Literal["cross-fitted", "split"]

FEWEST_MOMENTS = 10
"""A fit on fewer moments than this is refused."""

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Checked data for a fit: one row a moment, or one row a run for the single-run estimand."""

    proxies: Floats  # [rows, n]
    losses: Floats  # [rows, n]
    natural: Booleans  # [rows] drawn as the agent meets them, not spread over proxies on purpose
    groups: Integers  # [rows] 0 …: rows of one group (episode) are kept together
    moments: Integers  # [rows] 0 …: which moment a row belongs to
    n_values: tuple[int, ...]
    looks_at_n: bool
    estimand: Estimand = "mean"

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def moment_count(self) -> int:
        return int(self.moments.max()) + 1

    @property
    def running_maximum(self) -> Floats:
        """C_n, the largest loss over all n' ≤ n, [rows, n]: what a margin of n speaks about."""
        return np.asarray(np.maximum.accumulate(self.losses, axis=1))

    def take(self, rows: Booleans) -> Sample:
        """The sample with these rows only; groups and moments are numbered anew."""
        return Sample(
            proxies=self.proxies[rows],
            losses=self.losses[rows],
            natural=self.natural[rows],
            groups=_numbered(self.groups[rows]),
            moments=_numbered(self.moments[rows]),
            n_values=self.n_values,
            looks_at_n=self.looks_at_n,
            estimand=self.estimand,
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a fit can be told; every method takes those that mean something to it."""

    confidence: float
    minimum_bandwidth: float = 0.0
    """paper: ε̂_sampling / t_α: the vertical bandwidth is at least this."""
    lift: bool = True
    """Make the bound rise with the proxy (running maximum)."""
    drop_highest: float = 0.05
    """paper: the share of moments with the highest proxies that is left out."""
    bins: int = 200
    """Columns of the table."""
    calibration: Calibration = "cross-fitted"
    """calibrated, isotonic, boosted: see `bounds.conformal`."""
    calibration_bins: int | None = None
    """calibrated, isotonic, boosted: β is to hold in each of so many parts of the proxy's range;
    None: up to five, as the number of natural moments allows."""
    assurance: float = 0.95
    """tolerance: 1 − δ, how sure it is to be that the bound is no lower than the percentile."""


def check_options(options: Options) -> None:
    """One sentence on what is wrong with them."""
    check_confidence(options.confidence)
    if not 0 <= options.drop_highest < 1:
        raise InvalidInput(
            f"drop_highest must be at least 0 and below 1, got {options.drop_highest}"
        )
    if not (options.minimum_bandwidth >= 0 and math.isfinite(options.minimum_bandwidth)):
        raise InvalidInput(f"minimum_bandwidth must be at least 0, got {options.minimum_bandwidth}")
    if options.bins < 2:
        raise InvalidInput(f"bins must be at least 2, got {options.bins}")
    if options.calibration not in get_args(Calibration):
        raise InvalidInput(
            f"the calibration {options.calibration!r} is unknown; "
            + did_you_mean(str(options.calibration), get_args(Calibration))
        )
    if options.calibration_bins is not None and options.calibration_bins < 1:
        raise InvalidInput(f"calibration_bins must be at least 1, got {options.calibration_bins}")
    if not 0 < options.assurance < 1:
        raise InvalidInput(f"the assurance must lie between 0 and 1, got {options.assurance}")


def check_sample(
    proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
    criticalities: npt.ArrayLike,  # [moments, n], or [moments, runs, n] for single runs
    n_values: Sequence[int],
    *,
    natural: npt.ArrayLike | None = None,  # [moments] of booleans; None: all of them are
    groups: npt.ArrayLike | None = None,  # [moments] of labels; None: each moment by itself
    estimand: Estimand = "mean",
) -> Sample:
    """The data of a fit as finite arrays of matching shapes, or one sentence on what is wrong."""
    n_tuple = check_n_values(n_values)
    check_estimand(estimand)
    losses = _as_floats("criticalities", criticalities)
    values = _as_floats("proxies", proxies)
    if estimand == "mean" and (losses.ndim != 2 or losses.shape[1] != len(n_tuple)):
        raise InvalidInput(
            f"criticalities must be [moments, {len(n_tuple)}], one column for each of "
            f"n = {list(n_tuple)}, got shape {losses.shape}"
        )
    if estimand == "single-run" and (
        losses.ndim != 3 or losses.shape[2] != len(n_tuple) or losses.shape[1] < 1
    ):
        raise InvalidInput(
            f"estimand 'single-run' needs the losses of single runs, [moments, runs, "
            f"{len(n_tuple)}], got shape {losses.shape}"
        )
    count = len(losses)
    if values.shape not in ((count,), (count, len(n_tuple))):
        raise InvalidInput(
            f"proxies must be [{count}] like the moments of the criticalities (or "
            f"{[count, len(n_tuple)]} for a proxy that looks at n), got shape {values.shape}"
        )
    if count < FEWEST_MOMENTS:
        raise InvalidInput(
            f"a fit needs at least {FEWEST_MOMENTS} moments, got {count}: collect more"
        )
    looks_at_n = values.ndim == 2
    _check_finite("proxies", values, n_tuple)
    _check_finite("criticalities", losses, n_tuple)
    if not looks_at_n:
        values = np.repeat(values[:, None], len(n_tuple), axis=1)
    mask = _check_natural(natural, count)
    labels = _check_groups(groups, count)
    runs = losses.shape[1] if losses.ndim == 3 else 1
    return Sample(
        proxies=np.repeat(values, runs, axis=0),
        losses=losses.reshape(count * runs, len(n_tuple)),
        natural=np.repeat(mask, runs),
        groups=np.repeat(labels, runs),
        moments=np.repeat(np.arange(count), runs),
        n_values=n_tuple,
        looks_at_n=looks_at_n,
        estimand=estimand,
    )


def first_runs(sample: Sample) -> Booleans:
    """One run of each moment, where runs must be independent of one another, [rows]."""
    first = np.zeros(len(sample), dtype=bool)
    first[np.unique(sample.moments, return_index=True)[1]] = True
    return first


def check_n_values(n_values: Sequence[int]) -> tuple[int, ...]:
    """S as a tuple: increasing whole numbers from 1 on."""
    values = list(n_values)
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in values)
    if not (values and whole and values[0] >= 1 and values == sorted(set(values))):
        raise InvalidInput(f"n_values must be increasing whole numbers from 1 on, got {values}")
    return tuple(int(n) for n in values)


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"the confidence must lie between 0 and 1, got {confidence}")


def check_estimand(estimand: str) -> None:
    if estimand not in get_args(Estimand):
        raise InvalidInput(
            f"the estimand {estimand!r} is unknown; "
            + did_you_mean(str(estimand), get_args(Estimand))
        )


def _check_natural(natural: npt.ArrayLike | None, count: int) -> Booleans:
    if natural is None:
        return np.ones(count, dtype=bool)
    mask = np.asarray(natural)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise InvalidInput(
            f"natural must be a mask of {count} booleans, one a moment, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return mask


def _check_groups(groups: npt.ArrayLike | None, count: int) -> Integers:
    if groups is None:
        return np.arange(count)
    labels = np.asarray(groups)
    if labels.shape != (count,):
        raise InvalidInput(
            f"groups must hold one label for each of {count} moments, got shape {labels.shape}"
        )
    return _numbered(labels)


def _numbered(labels: npt.NDArray[Any]) -> Integers:
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def _as_floats(name: str, values: npt.ArrayLike) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be an array of numbers ({error})") from error


def _check_finite(name: str, values: Floats, n_values: tuple[int, ...]) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = f"moment {bad[0][0]}"
        if values.ndim >= 2:
            where += f", n = {n_values[bad[0][-1]]}"
        found = values[tuple(bad[0])]
        raise InvalidInput(f"{name} must be finite, but hold {found} at {where}")
