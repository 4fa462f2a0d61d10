"""Upper bounds b(p, n) on criticality given the proxy, behind one interface (paper § III-D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.density import Density, estimate_density
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.records import Floats

FEWEST_MOMENTS = 10
"""A fit on fewer moments than this is refused."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A table of b(p, n): with probability β the criticality stays at or below it."""

    n_values: tuple[int, ...]
    grid: Floats  # [n, bins] the proxy value of each bin; rows differ only if the proxy sees n
    upper: Floats  # [n, bins]
    confidence: float
    """β"""
    method: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the method found on the way, JSON-able: bandwidths, moments used, …"""
    looks_at_n: bool = False
    """The proxy has one value per n, and lookups take a last axis [n]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_values", check_n_values(self.n_values))
        check_confidence(self.confidence)
        for name in ("grid", "upper"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if (
            self.grid.ndim != 2
            or self.grid.shape[0] != len(self.n_values)
            or self.grid.shape[1] < 2
            or self.upper.shape != self.grid.shape
        ):
            raise InvalidInput(
                f"grid and upper must both be [{len(self.n_values)} n, bins] with two or more "
                f"bins, got shapes {self.grid.shape} and {self.upper.shape}"
            )
        if not (np.isfinite(self.grid).all() and np.isfinite(self.upper).all()):
            raise InvalidInput("grid and upper must hold finite numbers only")
        if not np.all(np.diff(self.grid, axis=1) > 0):
            raise InvalidInput("the proxy grid must increase from bin to bin")
        if not self.looks_at_n and not (self.grid == self.grid[0]).all():
            raise InvalidInput("the rows of the grid differ though the proxy does not look at n")

    @property
    def bins(self) -> int:
        return int(self.grid.shape[1])

    def expand(self, proxies: npt.ArrayLike) -> Floats:
        """Proxies with one value per n: [..., n] (a plain proxy is repeated)."""
        values = np.asarray(proxies, dtype=np.float64)
        if not self.looks_at_n:
            return np.broadcast_to(values[..., None], (*values.shape, len(self.n_values)))
        if values.ndim == 0 or values.shape[-1] != len(self.n_values):
            raise InvalidInput(
                f"this proxy looks at n: give one value for each of n = {list(self.n_values)} "
                f"along the last axis, got shape {values.shape}"
            )
        return values

    def at(self, proxies: npt.ArrayLike) -> Floats:
        """b(p, n) at the nearest bin, [..., n]; beyond the grid the first or last bin is nearest.

        Halfway between two bins the higher proxy is taken.
        """
        values = self.expand(proxies)  # [..., n]
        middles = (self.grid[:, :-1] + self.grid[:, 1:]) / 2  # [n, bins − 1]
        result = np.empty(values.shape)
        nearest = None
        for row in range(len(self.n_values)):
            if nearest is None or self.looks_at_n:
                nearest = np.searchsorted(middles[row], values[..., row], side="right")
            result[..., row] = self.upper[row][nearest]
        return result


@dataclass(frozen=True, eq=False)
class Sample:
    """Checked data for a fit."""

    proxies: Floats  # [moments, n]
    criticalities: Floats  # [moments, n]
    n_values: tuple[int, ...]
    looks_at_n: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a fit can be told; every method takes those that mean something to it."""

    confidence: float
    minimum_bandwidth: float = 0.0
    """ε̂_sampling / t_α: the vertical bandwidth is at least this."""
    lift: bool = True
    """Make the bound rise with the proxy (running maximum)."""
    drop_highest: float = 0.05
    """The share of moments with the highest proxies that is left out."""
    bins: int = 200


def fit_bound(
    proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
    criticalities: npt.ArrayLike,  # [moments, n]
    n_values: Sequence[int],
    *,
    confidence: float = 0.95,
    method: str = "paper",
    minimum_bandwidth: float = 0.0,
    lift: bool = True,
    drop_highest: float = 0.05,
    bins: int = 200,
) -> Bound:
    """The upper bound b(p, n) of the named method."""
    if method not in METHODS:
        raise InvalidInput(f"the method {method!r} is unknown; {did_you_mean(method, METHODS)}")
    check_confidence(confidence)
    options = Options(
        confidence=float(confidence),
        minimum_bandwidth=float(minimum_bandwidth),
        lift=bool(lift),
        drop_highest=float(drop_highest),
        bins=bins,
    )
    return METHODS[method](check_sample(proxies, criticalities, n_values), options)


def keep_lowest(proxies: Floats, drop_highest: float) -> npt.NDArray[np.int64]:
    """Which moments stay when the top share is left out, in their order: 1,000 → 950.

    ⌊share · M⌋ are left out; among equal proxies the later ones go first.
    """
    if not 0 <= drop_highest < 1:
        raise InvalidInput(f"drop_highest must be at least 0 and below 1, got {drop_highest}")
    dropped = int(np.floor(drop_highest * len(proxies) + 1e-9))  # 0.29 · 100 is 28.999…
    order = np.argsort(proxies, kind="stable")
    return np.sort(order[: len(proxies) - dropped])


def paper_densities(sample: Sample, options: Options) -> list[Density]:
    """One density per n, without the moments of the highest proxies."""
    densities = []
    for column in range(len(sample.n_values)):
        keep = keep_lowest(sample.proxies[:, column], options.drop_highest)
        densities.append(
            estimate_density(
                sample.proxies[keep, column],
                sample.criticalities[keep, column],
                bins=options.bins,
                minimum_bandwidth=options.minimum_bandwidth,
            )
        )
    return densities


def fit_paper(sample: Sample, options: Options) -> Bound:
    """The paper's: the β percentile of each column of the density, lifted to rise with p."""
    densities = paper_densities(sample, options)
    upper = np.stack([density.percentile(options.confidence) for density in densities])
    if options.lift:
        upper = np.maximum.accumulate(upper, axis=1)
    given = len(sample.proxies)
    used = len(keep_lowest(sample.proxies[:, 0], options.drop_highest))
    return Bound(
        n_values=sample.n_values,
        grid=np.stack([density.proxy for density in densities]),
        upper=upper,
        confidence=options.confidence,
        method="paper",
        details={
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
        looks_at_n=sample.looks_at_n,
    )


METHODS: dict[str, Callable[[Sample, Options], Bound]] = {"paper": fit_paper}
"""Name → fitter."""


def check_sample(
    proxies: npt.ArrayLike, criticalities: npt.ArrayLike, n_values: Sequence[int]
) -> Sample:
    """The data of a fit as finite arrays of matching shapes, or one sentence on what is wrong."""
    n_tuple = check_n_values(n_values)
    losses = _as_floats("criticalities", criticalities)
    values = _as_floats("proxies", proxies)
    if losses.ndim != 2 or losses.shape[1] != len(n_tuple):
        raise InvalidInput(
            f"criticalities must be [moments, {len(n_tuple)}], one column for each of "
            f"n = {list(n_tuple)}, got shape {losses.shape}"
        )
    if values.shape not in ((len(losses),), losses.shape):
        raise InvalidInput(
            f"proxies must be [{len(losses)}] like the moments of the criticalities (or "
            f"{list(losses.shape)} for a proxy that looks at n), got shape {values.shape}"
        )
    if len(losses) < FEWEST_MOMENTS:
        raise InvalidInput(
            f"a fit needs at least {FEWEST_MOMENTS} moments, got {len(losses)}: collect more"
        )
    looks_at_n = values.ndim == 2
    _check_finite("proxies", values, n_tuple)
    _check_finite("criticalities", losses, n_tuple)
    if not looks_at_n:
        values = np.repeat(values[:, None], len(n_tuple), axis=1)
    return Sample(proxies=values, criticalities=losses, n_values=n_tuple, looks_at_n=looks_at_n)


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


def _as_floats(name: str, values: npt.ArrayLike) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be an array of numbers ({error})") from error


def _check_finite(name: str, values: Floats, n_values: tuple[int, ...]) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = f"moment {bad[0][0]}"
        if values.ndim == 2:
            where += f", n = {n_values[bad[0][1]]}"
        found = values[tuple(bad[0])]
        raise InvalidInput(f"{name} must be finite, but hold {found} at {where}")
