"""Safety margins s*(p, ζ) and how to look them up (paper § III-D); needs numpy only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from safemargin.core.measured import USUAL, Measured
from safemargin.core.notebook import table_html
from safemargin.core.records import Floats
from safemargin.core.version import __version__
from safemargin.errors import InvalidInput, MarginsFileError
from safemargin.margins.bounds.table import STATISTICS, Bound, Estimand, check_known
from safemargin.margins.file import (
    ABOUT,
    FORMAT,
    README,
    README_MEASURED,
    README_STATISTIC,
    VERSION,
    describe_bound,
    parse_document,
    read_document,
    write_document,
)
from safemargin.margins.learned.probe import Probe
from safemargin.margins.natural_proxies import NaturalProxies
from safemargin.policies.zoo import zoo_margins_path

Above = Literal["zero", "nearest", "error"]

ZOO = "zoo:"
"""What stands before the name of a bundled agent."""


class OutsideRange(UserWarning):
    """A proxy value lies above all those that the margins were fitted on."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """Margins with flags; scalars for scalars, arrays for arrays."""

    margin: Any  # int or int array [...]
    outside: Any  # bool or bool array [...]: the proxy lies above the measured range
    below: Any  # bool or bool array [...]: the proxy lies below the range; the lowest bin was used


_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""A notebook shows margins at tolerances near these quantiles of the bounds."""


@dataclass(frozen=True, eq=False, repr=False)
class Margins:
    """How many mistakes the agent can afford, given the proxy and a tolerance."""

    bound: Bound
    proxy: str = "proxy"
    """The name of the proxy that lookups expect."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The environment that these margins hold in: name, identity (hash), …"""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The policy that these margins hold for: description, identity (hash), kind of scores."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the study: γ, S, ε̂, …"""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How much was measured: natural and spread moments, trials, …"""
    natural_proxies: NaturalProxies | None = None
    """The distribution of the proxy, for detecting drift; None if it is unknown."""
    probe: Probe | None = None
    """The model behind a learned proxy, with which a monitor computes it; None for others."""
    measured: Measured = USUAL
    """Which mistakes n counts, and what they cost; usually random actions, discounted reward."""
    created_by: str = "safemargin.fit_margins"
    """The command or function that made these margins."""
    safemargin_version: str = __version__

    @property
    def n_values(self) -> tuple[int, ...]:
        return self.bound.n_values

    @property
    def confidence(self) -> float:
        return self.bound.confidence

    @property
    def method(self) -> str:
        return self.bound.method

    @property
    def estimand(self) -> Estimand:
        """Which loss is bounded: the mean at a moment, or that of a single run."""
        return self.bound.estimand

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of these margins must know, one sentence each."""
        return self.bound.notes

    @property
    def lowest_proxy(self) -> float:
        return float(self.bound.grid.min())

    @property
    def highest_proxy(self) -> float:
        """The highest measured proxy; above it the margin is 0."""
        return float(self.bound.grid.max())

    def __repr__(self) -> str:
        return (
            f"<Margins of {self.proxy} at confidence {self.confidence:g} by {self.method!r}, "
            f"n = {', '.join(map(str, self.n_values))}"
            + ("" if self.measured.usual else f" ({self.measured.brief})")
            + ">"
        )

    def _repr_html_(self) -> str:
        title = (
            f"Safety margins (confidence {self.confidence:g}, method {self.method!r}): how many "
            f"{self.measured.mistakes} the agent can afford"
        )
        finite = self.bound.upper[np.isfinite(self.bound.upper) & (self.bound.upper > 0)]
        if self.bound.looks_at_n or not finite.size:
            return table_html(title, ["", ""], [["proxy", self.proxy]], notes=self.notes)
        tolerances = np.unique([float(f"{one:.1g}") for one in np.quantile(finite, _LEVELS)])
        proxies = np.linspace(self.lowest_proxy, self.highest_proxy, 9)
        found = [self(proxies, one).tolist() for one in tolerances]
        return table_html(
            title,
            [f"tolerance \\ {self.proxy}", *(f"{one:.3g}" for one in proxies)],
            [[f"{one:g}", *row] for one, row in zip(tolerances, found, strict=True)],
            shades=[[value / max(self.n_values) for value in row] for row in found],
            notes=self.notes,
        )

    def __call__(self, proxy: npt.ArrayLike, tolerance: npt.ArrayLike) -> Any:
        """Return s*(p, ζ): an int for scalars, an int array for arrays (they broadcast).

        Above the measured range the margin is 0, and an `OutsideRange` warning says so.
        """
        found = self.lookup(proxy, tolerance)
        outside = int(np.count_nonzero(found.outside))
        if outside:
            warnings.warn(
                f"{outside} of {np.size(found.outside)} proxy values lie above "
                f"{self.highest_proxy:g}, the highest these margins were fitted on; their margin "
                "is 0 (use lookup(…, above='nearest') for the last bin instead)",
                OutsideRange,
                stacklevel=2,
            )
        return found.margin

    def lookup(
        self, proxy: npt.ArrayLike, tolerance: npt.ArrayLike, *, above: Above = "zero"
    ) -> Lookup:
        """Return margins with flags; `above` says what to do above the highest measured proxy."""
        check_known("above=", above, get_args(Above))
        proxies = self.bound.expand(_numbers("proxy", proxy))  # [..., n]
        tolerances = _numbers("tolerance", tolerance)  # [...]
        if (tolerances < 0).any():
            raise InvalidInput(f"the tolerance must be at least 0, got {tolerances.min():g}")
        high = proxies > self.bound.grid[:, -1]  # [..., n]
        if above == "error" and high.any():
            raise InvalidInput(
                f"the proxy {proxies[high].max():g} lies above {self.highest_proxy:g}, the highest "
                "these margins were fitted on"
            )
        upper = self.bound.at(proxies if self.bound.looks_at_n else proxies[..., 0])  # [..., n]
        if above == "zero":
            upper = np.where(high, np.inf, upper)  # no bound, so it satisfies no tolerance
        # "for every n' ≤ n" is the running maximum over n.
        worst = np.maximum.accumulate(upper, axis=-1)  # [..., n]
        try:
            within = (worst <= tolerances[..., None]) & np.isfinite(worst)
            affordable = np.count_nonzero(within, axis=-1)
        except ValueError as error:
            raise InvalidInput(
                f"proxy and tolerance must have shapes that broadcast, got {proxies.shape[:-1]} "
                f"and {tolerances.shape}"
            ) from error
        margin = np.array([0, *self.n_values])[affordable]
        outside = np.broadcast_to(high.any(axis=-1), margin.shape)
        below = np.broadcast_to((proxies < self.bound.grid[:, 0]).any(axis=-1), margin.shape)
        if margin.ndim == 0:
            return Lookup(int(margin), bool(outside), bool(below))
        return Lookup(margin, outside, below)

    def heatmap(self, tolerances: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the margin at every tolerance and proxy bin, [tolerances, bins]."""
        if self.bound.looks_at_n:
            raise InvalidInput(
                f"the proxy {self.proxy!r} looks at n, so a heatmap has no single proxy axis"
            )
        rows = np.atleast_1d(_numbers("tolerance", tolerances))
        return np.asarray(self.lookup(self.bound.grid[0], rows[:, None]).margin, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of margins.json as plain lists, numbers and strings."""
        natural = self.natural_proxies
        return {
            "format": FORMAT,
            "version": VERSION,
            "readme": " ".join(
                [README]
                + [README_MEASURED] * (not self.measured.usual)
                + [README_STATISTIC] * (self.estimand in STATISTICS)
            ),
            **{name: kind(getattr(self, name)) for name, kind in ABOUT.items()},
            **describe_bound(self.bound),
            "natural_proxies": None if natural is None else natural.to_dict(),
            "probe": None if self.probe is None else self.probe.to_dict(),
            "test_vectors": self.test_vectors(),
            **({} if self.measured.usual else {"measured": self.measured.to_dict()}),
        }

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "these margins") -> Margins:
        """Restore margins from what `to_dict` returned, after checking all of it."""
        found = cls(**parse_document(data, source))
        if data["version"] > 3 and "test_vectors" in data:
            found._check_vectors(data["test_vectors"], source)
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write margins.json atomically (a temporary file, then a rename)."""
        return write_document(Path(path), self.to_dict())

    def test_vectors(self) -> list[dict[str, Any]]:
        """Return proxies and tolerances with their margins: what other programs must find, too."""
        finite = self.bound.upper[np.isfinite(self.bound.upper)]
        levels = np.unique(np.quantile(finite, [0.1, 0.5, 0.9])) if finite.size else np.array([1.0])
        places = np.linspace(0, self.bound.bins - 1, 9).astype(int)
        vectors = []
        for index in places:
            column = self.bound.grid[:, index]
            proxy = column.tolist() if self.bound.looks_at_n else float(column[0])
            for level in np.maximum(levels, 0).tolist():
                found = self.lookup(proxy, level)
                vectors.append({"proxy": proxy, "tolerance": level, "margin": found.margin})
        return vectors

    def _check_vectors(self, vectors: Any, source: str) -> None:
        """Raise MarginsFileError unless these margins are the ones that were written down."""
        for vector in vectors if type(vectors) is list else [vectors]:
            try:
                proxy, level, margin = (vector[name] for name in ("proxy", "tolerance", "margin"))
                found = self.lookup(proxy, float(level)).margin
                same = bool(found == margin)
            except (InvalidInput, KeyError, TypeError, ValueError) as error:
                raise MarginsFileError(
                    f"{source}: {vector!r:.80} is no entry of 'test_vectors'; fit again to make a "
                    "new file"
                ) from error
            if not same:
                raise MarginsFileError(
                    f"{source}: it was changed after it was made: at a proxy of {proxy} and a "
                    f"tolerance of {level:g} its 'test_vectors' say {margin!r:.40}, and its table "
                    f"grants {found}; fit again to make a new file"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Margins:
        """Load margins from a file that `save` wrote, or `zoo:NAME`: those of a bundled agent."""
        bundled = str(path).startswith(ZOO)
        file = zoo_margins_path(str(path).removeprefix(ZOO)) if bundled else path
        return cls.from_dict(read_document(file), source=str(path))


def _numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the {name} must be a number or an array, got {values!r}") from error
    if np.isnan(array).any():
        raise InvalidInput(f"the {name} must be a number, got NaN")
    return array
