"""What every fitter receives: the measured moments, checked, and the options of the methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.table import (
    Bound,
    Estimand,
    check_confidence,
    check_estimand,
    check_known,
    check_n_values,
)

ESTIMANDS = {
    "mean": "mean loss at a moment",
    "single-run": "loss of a single run",
    "p90": "90 % percentile of the loss at a moment",
    "p95": "95 % percentile of the loss at a moment",
    "p99": "99 % percentile of the loss at a moment",
    "sd": "standard deviation of the loss at a moment",
}
"""What titles of tables and pictures call each estimand."""

Calibration = Literal["cross-fitted", "split"]

FEWEST_MOMENTS = 10
"""A fit on fewer moments than this is refused."""

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Checked data for a fit: one row per moment, or one per run for the single-run estimand."""

    proxies: Floats  # [rows, n]
    losses: Floats  # [rows, n]
    natural: Booleans  # [rows] drawn as the agent meets them, not spread over proxies on purpose
    groups: Integers  # [rows] 0 …: rows of one group (episode) are kept together
    moments: Integers  # [rows] 0 …: which moment a row belongs to
    n_values: tuple[int, ...]
    looks_at_n: bool
    estimand: Estimand = "mean"

    @classmethod
    def from_arrays(
        cls,
        proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
        criticalities: npt.ArrayLike,  # [moments, n], or [moments, runs, n] for single runs
        n_values: Sequence[int],
        *,
        natural: npt.ArrayLike | None = None,  # [moments] of booleans; None: all of them are
        groups: npt.ArrayLike | None = None,  # [moments] of labels; None: each moment by itself
        estimand: Estimand = "mean",
    ) -> Sample:
        """Build a sample from finite arrays of matching shapes; InvalidInput says what is wrong."""
        n_tuple = check_n_values(n_values)
        check_estimand(estimand)
        losses = _as_floats("criticalities", criticalities)
        values = _as_floats("proxies", proxies)
        _check_shapes(values, losses, n_tuple, estimand)
        count = len(losses)
        check_moment_count(count)
        _check_finite("proxies", values, n_tuple)
        _check_finite("criticalities", losses, n_tuple)
        looks_at_n = values.ndim == 2
        if not looks_at_n:
            values = np.repeat(values[:, None], len(n_tuple), axis=1)
        runs = losses.shape[1] if losses.ndim == 3 else 1
        return cls(
            proxies=np.repeat(values, runs, axis=0),
            losses=losses.reshape(count * runs, len(n_tuple)),
            natural=np.repeat(_check_natural(natural, count), runs),
            groups=np.repeat(_check_groups(groups, count), runs),
            moments=np.repeat(np.arange(count), runs),
            n_values=n_tuple,
            looks_at_n=looks_at_n,
            estimand=estimand,
        )

    @classmethod
    def from_tuples(
        cls,
        tuples: Tuples,
        estimand: Estimand = "mean",
        *,
        moments: Booleans | Integers | None = None,
    ) -> Sample:
        """Build a sample from a study's moments, or from some of them (a mask or indices)."""
        rows: Any = slice(None) if moments is None else moments
        return cls.from_arrays(
            tuples.proxies[rows],
            tuples.losses(estimand)[rows],
            tuples.n_values,
            natural=tuples.phases[rows] == "natural",
            groups=None if tuples.groups is None else tuples.groups[rows],
            estimand=estimand,
        )

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def moment_count(self) -> int:
        return int(self.moments.max()) + 1

    @property
    def running_maximum(self) -> Floats:
        """C_n, the largest loss over all n' ≤ n, [rows, n]: what a margin of n is about."""
        return np.asarray(np.maximum.accumulate(self.losses, axis=1))

    @property
    def first_runs(self) -> Booleans:
        """Marks one run of each moment: different runs of a moment are not independent, [rows]."""
        first = np.zeros(len(self), dtype=bool)
        first[np.unique(self.moments, return_index=True)[1]] = True
        return first

    def take(self, rows: Booleans) -> Sample:
        """Return the sample of these rows only, with groups and moments renumbered."""
        return replace(
            self,
            proxies=self.proxies[rows],
            losses=self.losses[rows],
            natural=self.natural[rows],
            groups=_numbered(self.groups[rows]),
            moments=_numbered(self.moments[rows]),
        )

    def take_columns(self, columns: Sequence[int]) -> Sample:
        """Return the sample of these columns (indices into `n_values`) only."""
        return replace(
            self,
            proxies=self.proxies[:, columns],
            losses=self.losses[:, columns],
            n_values=tuple(self.n_values[column] for column in columns),
        )

    def bound(
        self,
        options: Options,
        *,
        method: str,
        grid: Floats,  # [n, bins]
        upper: Floats,  # [n, bins]
        details: Mapping[str, Any],
    ) -> Bound:
        """Return the bound that a method fitted to this sample."""
        return Bound(
            n_values=self.n_values,
            grid=grid,
            upper=upper,
            confidence=options.confidence,
            method=method,
            details=details,
            looks_at_n=self.looks_at_n,
            estimand=self.estimand,
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a fit; each method uses those that apply to it."""

    confidence: float
    minimum_bandwidth: float = 0.0
    """paper: the vertical bandwidth is at least this, ε̂_sampling / t_α."""
    lift: bool = True
    """Make the bound rise with the proxy (running maximum)."""
    drop_highest: float = 0.05
    """paper: the share of moments, those with the highest proxies, that is left out."""
    bins: int = 200
    """Columns of the table."""
    calibration: Calibration = "cross-fitted"
    """calibrated, isotonic, boosted: see `bounds.conformal`."""
    calibration_bins: int | None = None
    """calibrated, isotonic, boosted: β must hold in each of this many parts of the proxy's range;
    None: up to five, as the number of natural moments allows."""
    tolerances: tuple[float, ...] = ()
    """granted: the tolerances that the promise is made for."""
    assurance: float = 0.95
    """tolerance: 1 − δ, the probability that the bound is no lower than the percentile."""

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        parts = self.calibration_bins
        for name, holds, allowed in (
            ("drop_highest", 0 <= self.drop_highest < 1, "at least 0 and below 1"),
            ("minimum_bandwidth", 0 <= self.minimum_bandwidth < math.inf, "at least 0"),
            ("bins", self.bins >= 2, "at least 2"),
            ("calibration_bins", parts is None or parts >= 1, "at least 1"),
        ):
            if not holds:
                raise InvalidInput(f"{name} must be {allowed}, got {getattr(self, name)}")
        check_known("the calibration ", self.calibration, get_args(Calibration))
        object.__setattr__(self, "tolerances", tuple(map(float, self.tolerances)))
        if not all(0 <= each < math.inf for each in self.tolerances):
            raise InvalidInput(f"tolerances must be at least 0, got {list(self.tolerances)}")
        if not 0 < self.assurance < 1:
            raise InvalidInput(f"the assurance must lie between 0 and 1, got {self.assurance}")


def check_moment_count(count: int) -> None:
    if count < FEWEST_MOMENTS:
        raise InvalidInput(
            f"a fit needs at least {FEWEST_MOMENTS} moments, got {count}: collect more"
        )


def _check_shapes(
    proxies: Floats, losses: Floats, n_values: tuple[int, ...], estimand: Estimand
) -> None:
    if estimand != "single-run" and (losses.ndim != 2 or losses.shape[1] != len(n_values)):
        raise InvalidInput(
            f"criticalities must be [moments, {len(n_values)}], one column for each of "
            f"n = {list(n_values)}, got shape {losses.shape}"
        )
    if estimand == "single-run" and (
        losses.ndim != 3 or losses.shape[2] != len(n_values) or losses.shape[1] < 1
    ):
        raise InvalidInput(
            f"estimand 'single-run' needs the losses of single runs, [moments, runs, "
            f"{len(n_values)}], got shape {losses.shape}"
        )
    count = len(losses)
    if proxies.shape not in ((count,), (count, len(n_values))):
        raise InvalidInput(
            f"proxies must be [{count}] like the moments of the criticalities (or "
            f"{[count, len(n_values)]} for a proxy that looks at n), got shape {proxies.shape}"
        )


def _check_natural(natural: npt.ArrayLike | None, count: int) -> Booleans:
    if natural is None:
        return np.ones(count, dtype=bool)
    mask = np.asarray(natural)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise InvalidInput(
            f"natural must be a mask of {count} booleans, one per moment, "
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
