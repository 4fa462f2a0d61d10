"""Safety margins s*(p, ζ): the table, its lookup and its portable file (paper § III-D)."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from safemargin.bounds import Bound, fit_bound
from safemargin.errors import InvalidInput, MarginsFileError, did_you_mean
from safemargin.records import Floats

Above = Literal["zero", "nearest", "error"]

FORMAT = "safemargin-margins"
VERSION = 1
README = (
    "Look up the safety margin of a proxy value p at a tolerance z (in reward units): take the bin "
    "whose value in 'grid' is nearest to p; go through 'n_values' in order while upper[i][bin] is "
    "at most z; the margin is the last n for which that held, or 0 if it failed at the first. "
    "upper[i] belongs to n_values[i]. Below grid[0] the first bin is nearest; above the last grid "
    "value nothing was measured: use margin 0. If 'looks_at_n' is true, the proxy has one value "
    "per n and grid[i] belongs to n_values[i]; above grid[i] stop before n_values[i]. The margin "
    "holds for 'policy' in 'environment' only. With probability about 'confidence' the expected "
    "loss of discounted reward is at most z when the next so many actions are random."
)


class OutsideRange(UserWarning):
    """A proxy above all values the margins were fitted on."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """Margins and what is worth knowing about them; scalars for scalars, arrays for arrays."""

    margin: Any  # int or int array [...]
    outside: Any  # bool or bool array [...]: the proxy lies above what was measured
    below: Any  # bool or bool array [...]: the proxy lies below; the lowest bin was used


@dataclass(frozen=True, eq=False)
class Margins:
    """How many mistakes the agent can afford, given the proxy and a tolerance."""

    bound: Bound
    proxy: str = "proxy"
    """The name of the proxy that lookups expect."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Whose margins these are: name, identity (hash), …"""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Whose margins these are: name, identity (hash), score kind, …"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the study measured: γ, S, ε̂, …"""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How much was measured: natural and spread moments, trials, …"""
    created_by: str = "safemargin.fit_margins"
    """The command or function that made them."""
    safemargin_version: str = field(default_factory=lambda: _version())

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
    def lowest_proxy(self) -> float:
        return float(self.bound.grid.min())

    @property
    def highest_proxy(self) -> float:
        """Above this nothing was measured."""
        return float(self.bound.grid.max())

    def __call__(self, proxy: npt.ArrayLike, tolerance: npt.ArrayLike) -> Any:
        """s*(p, ζ): an int for scalars, an int array for arrays (they broadcast).

        Above the measured proxies the margin is 0, and an `OutsideRange` warning says so.
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
        """Margins with flags; `above` says what to do beyond the highest measured proxy."""
        if above not in get_args(Above):
            known = did_you_mean(str(above), get_args(Above))
            raise InvalidInput(f"above={above!r} is unknown; {known}")
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
            upper = np.where(high, np.inf, upper)  # unknown, so it satisfies no tolerance
        # "for every n' ≤ n" is the running maximum over n.
        worst = np.maximum.accumulate(upper, axis=-1)  # [..., n]
        try:
            affordable = np.count_nonzero(worst <= tolerances[..., None], axis=-1)
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
        """The margin at every tolerance and proxy bin, [tolerances, bins]."""
        if self.bound.looks_at_n:
            raise InvalidInput(
                f"the proxy {self.proxy!r} looks at n, so a heatmap has no single proxy axis"
            )
        rows = np.atleast_1d(_numbers("tolerance", tolerances))
        return np.asarray(self.lookup(self.bound.grid[0], rows[:, None]).margin, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts: what margins.json holds."""
        bound = self.bound
        return {
            "format": FORMAT,
            "version": VERSION,
            "readme": README,
            "safemargin_version": self.safemargin_version,
            "created_by": self.created_by,
            "environment": dict(self.environment),
            "policy": dict(self.policy),
            "settings": dict(self.settings),
            "counts": dict(self.counts),
            "proxy": self.proxy,
            "looks_at_n": bound.looks_at_n,
            "method": bound.method,
            "confidence": bound.confidence,
            "details": dict(bound.details),
            "n_values": list(bound.n_values),
            "grid": bound.grid.tolist() if bound.looks_at_n else bound.grid[0].tolist(),
            "upper": bound.upper.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "these margins") -> Margins:
        """The margins that `to_dict` described; checks everything."""
        return _parse(data, source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write margins.json whole or not at all (a temporary file, then a rename)."""
        target = Path(path)
        try:
            # One line per entry: short enough to read, and every prefix of it is broken JSON.
            entries = [
                f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
                for name, value in self.to_dict().items()
            ]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the margins hold something JSON cannot: {error}") from error
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write("{\n" + ",\n".join(entries) + "\n}")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise MarginsFileError(f"{target} cannot be written: {error.strerror}") from error
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Margins:
        """The margins in a file that `save` wrote."""
        try:
            data = json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
        except FileNotFoundError:
            raise MarginsFileError(
                f"{path} does not exist; fit first (safemargin fit STUDY -o {path})"
            ) from None
        except OSError as error:
            raise MarginsFileError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise MarginsFileError(
                f"{path} is not whole JSON (truncated or of another kind); fit again"
            ) from error
        return cls.from_dict(data, source=str(path))


def fit_margins(
    proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
    criticalities: npt.ArrayLike,  # [moments, n]
    n_values: Sequence[int],
    confidence: float = 0.95,
    method: str = "paper",
    *,
    minimum_bandwidth: float = 0.0,
    lift: bool = True,
    drop_highest: float = 0.05,
    bins: int = 200,
    proxy: str = "proxy",
    environment: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    counts: Mapping[str, int] | None = None,
    created_by: str = "safemargin.fit_margins",
) -> Margins:
    """Margins from measured moments: the proxy at each, and its true criticality for each n."""
    bound = fit_bound(
        proxies,
        criticalities,
        n_values,
        confidence=confidence,
        method=method,
        minimum_bandwidth=minimum_bandwidth,
        lift=lift,
        drop_highest=drop_highest,
        bins=bins,
    )
    return Margins(
        bound=bound,
        proxy=proxy,
        environment=dict(environment or {}),
        policy=dict(policy or {}),
        settings=dict(settings or {}),
        counts={"moments": len(np.asarray(criticalities))} if counts is None else dict(counts),
        created_by=created_by,
    )


def _numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the {name} must be a number or an array, got {values!r}") from error
    if np.isnan(array).any():
        raise InvalidInput(f"the {name} must be a number, got NaN")
    return array


def _version() -> str:
    from safemargin import __version__  # not at the top: the package imports this module

    return __version__


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")


def _parse(data: Any, source: str) -> Margins:
    def fail(what: str) -> NoReturn:
        raise MarginsFileError(f"{source}: {what}; fit again to make a new file")

    def entry(name: str, kind: type) -> Any:
        if name not in data:
            fail(f"the entry {name!r} is missing")
        if type(data[name]) is not kind:  # exactly: True must not pass for a number
            fail(f"the entry {name!r} must be a {kind.__name__}, not {data[name]!r:.40}")
        return data[name]

    def table(name: str, depth: int) -> Floats:
        rows = [entry(name, list)] if depth == 1 else entry(name, list)
        widths = {len(row) if type(row) is list else -1 for row in rows}
        if len(widths) != 1 or -1 in widths:
            fail(f"the entry {name!r} must hold {'numbers' if depth == 1 else 'equal rows'}")
        for row in rows:
            for value in row:
                if type(value) not in (int, float) or not math.isfinite(value):
                    fail(f"the entry {name!r} holds {value!r:.40} where a number belongs")
        return np.array(rows, dtype=np.float64)

    if type(data) is not dict or data.get("format") != FORMAT:
        fail(f"this is not a margins file (its format is not {FORMAT!r})")
    version = entry("version", int)
    if version != VERSION:
        fail(
            f"its version is {version} and this safemargin reads version {VERSION}; "
            "install the safemargin that wrote it, or"
        )
    try:
        n_values = entry("n_values", list)
        looks_at_n = entry("looks_at_n", bool)
        grid = table("grid", 2 if looks_at_n else 1)
        bound = Bound(
            n_values=tuple(n_values),
            grid=grid if looks_at_n else np.repeat(grid, len(n_values), axis=0),
            upper=table("upper", 2),
            confidence=entry("confidence", float),
            method=entry("method", str),
            details=entry("details", dict),
            looks_at_n=looks_at_n,
        )
    except (InvalidInput, OverflowError, TypeError) as error:
        fail(str(error))
    return Margins(
        bound=bound,
        proxy=entry("proxy", str),
        environment=entry("environment", dict),
        policy=entry("policy", dict),
        settings=entry("settings", dict),
        counts=entry("counts", dict),
        created_by=entry("created_by", str),
        safemargin_version=entry("safemargin_version", str),
    )
