"""What every fitter returns: the table of an upper bound b(p, n), and its lookup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, did_you_mean

Estimand = Literal["mean", "single-run", "p90", "p95", "p99", "sd"]

STATISTICS: Mapping[str, float | None] = {"p90": 0.9, "p95": 0.95, "p99": 0.99, "sd": None}
"""What can be bounded instead of the mean over the trials of a moment; None: no percentile."""
"""Which loss is bounded: the mean over random actions at a moment (the paper's true criticality),
or that of a single run (what one person will see)."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A table of b(p, n): with probability β the loss stays at or below it.

    What exactly is bounded (the loss at n, or the largest over all n' ≤ n) and how far β can be
    relied on depends on the method; see `details`.
    """

    n_values: tuple[int, ...]
    grid: Floats  # [n, bins] the proxy value of each bin; rows differ only if it looks at n
    upper: Floats  # [n, bins] infinite where the data allow no bound: no tolerance is met there
    confidence: float
    """β"""
    method: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the method promises and found along the way, as JSON: bandwidths, moments used, …"""
    looks_at_n: bool = False
    """The proxy has one value per n, and lookups take a last axis [n]."""
    estimand: Estimand = "mean"
    """Which loss is bounded: the mean at a moment, or that of a single run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_values", check_n_values(self.n_values))
        check_confidence(self.confidence)
        check_estimand(self.estimand)
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
        if not np.isfinite(self.grid).all() or (np.isnan(self.upper) | (self.upper < -1e308)).any():
            raise InvalidInput(
                "grid must hold finite numbers, and upper finite numbers or infinity (no bound)"
            )
        if not np.all(np.diff(self.grid, axis=1) > 0):
            raise InvalidInput("the proxy grid must increase from bin to bin")
        if not self.looks_at_n and not (self.grid == self.grid[0]).all():
            raise InvalidInput("the rows of the grid differ though the proxy does not look at n")

    @property
    def bins(self) -> int:
        return int(self.grid.shape[1])

    @property
    def unbounded(self) -> float:
        """The share of the table without a bound."""
        return float(np.isinf(self.upper).mean())

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of this bound must know, one sentence each."""
        return tuple(self.details.get("notes", ()))

    def expand(self, proxies: npt.ArrayLike) -> Floats:
        """Return the proxies with one value per n, [..., n]; a plain proxy is repeated."""
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
        """Return b(p, n) at the nearest bin, [..., n]; halfway, the bin of the higher proxy."""
        values = self.expand(proxies)  # [..., n]
        middles = (self.grid[:, :-1] + self.grid[:, 1:]) / 2  # [n, bins − 1]
        result = np.empty(values.shape)
        nearest = None
        for row in range(len(self.n_values)):
            if nearest is None or self.looks_at_n:
                nearest = np.searchsorted(middles[row], values[..., row], side="right")
            result[..., row] = self.upper[row][nearest]
        return result


LARGEST_N = 2**63 - 1
"""The largest number in an array of margins."""


def check_n_values(n_values: Sequence[int]) -> tuple[int, ...]:
    """Return S as a tuple of increasing whole numbers."""
    values = list(n_values)
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in values)
    if not (values and whole and values[0] >= 1 and values == sorted(set(values))):
        raise InvalidInput(
            f"n_values must be increasing whole numbers, starting at 1 or above, got {values}"
        )
    if values[-1] > LARGEST_N:
        raise InvalidInput(f"n_values must be at most {LARGEST_N}, got {values[-1]!r:.25}")
    return tuple(int(n) for n in values)


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"the confidence must lie between 0 and 1, got {confidence}")


def check_estimand(estimand: str) -> None:
    check_known("the estimand ", estimand, get_args(Estimand))


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Refuse an unknown name; the error begins with `what` and the name, and suggests another."""
    if name not in known:
        raise InvalidInput(f"{what}{name!r} is unknown; {did_you_mean(str(name), known)}")
