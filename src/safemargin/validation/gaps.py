"""The gap error (paper § III-D): what a thin S = {1, 2, 4, …} misses, seen from a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.margins.bounds.sample import Sample
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import fit_sample
from safemargin.validation.heldout import typical_tolerances


@dataclass(frozen=True)
class GapRow:
    """One tolerance: margins from the powers of two beside those from all n."""

    tolerance: float
    dense_margin: float
    """Mean over natural moments, from all n."""
    thin_margin: float
    """The same from the powers of two only."""
    dense_failures: float
    """Share of natural moments at which some n' ≤ the dense margin broke the tolerance."""
    thin_failures: float
    """The same for the thin margin, with the n' in the gaps counted."""
    thin_larger: float
    """Share of natural moments at which the thin margin is the larger one."""


@dataclass(frozen=True)
class GapError:
    """How far the powers of two were off; natural moments, fitted and judged on the same data."""

    dense: tuple[int, ...]
    thin: tuple[int, ...]
    missed: tuple[float, ...]  # for each thin n: the mean of what C_n loses in the gaps below n
    worst_missed: tuple[float, ...]  # the same at the worst moment
    rows: tuple[GapRow, ...]


def powers_of_two(n_values: Sequence[int]) -> tuple[int, ...]:
    """Those of n_values that are powers of two."""
    return tuple(n for n in n_values if n & (n - 1) == 0)


def is_dense(n_values: Sequence[int]) -> bool:
    """Whether gaps between powers of two were measured: 1, 2, 3, 4, … without holes."""
    return len(n_values) >= 3 and list(n_values) == list(range(1, len(n_values) + 1))


def gap_error(
    sample: Sample,
    *,
    confidence: float = 0.95,
    method: str = "calibrated",
    tolerances: Sequence[float] | None = None,
    **options: Any,
) -> GapError | None:
    """Fit with all n and with the powers of two only; None where S has holes itself."""
    if not is_dense(sample.n_values):
        return None
    thin_values = powers_of_two(sample.n_values)
    columns = [sample.n_values.index(n) for n in thin_values]
    thin = sample.take_columns(columns)
    natural = sample.natural if sample.natural.any() else np.ones(len(sample), dtype=bool)
    whole = sample.running_maximum[natural]  # [rows, n]
    missed = whole[:, columns] - thin.running_maximum[natural]  # [rows, thin n], never below 0
    tables = [
        Margins(fit_sample(part, method=method, confidence=confidence, **options))
        for part in (sample, thin)
    ]
    steps = np.array([0, *sample.n_values])
    rows = []
    if tolerances is None:
        tolerances = typical_tolerances(tables[0].bound.upper)
    for tolerance in tolerances:
        broken = np.concatenate(
            [np.zeros((len(whole), 1), dtype=bool), whole > tolerance], axis=1
        )  # [rows, 1 + n]; nothing breaks at a margin of 0
        margins, failures = [], []
        for part, table in zip((sample, thin), tables, strict=True):
            proxies = part.proxies[natural]
            found = table.lookup(proxies if part.looks_at_n else proxies[:, 0], tolerance).margin
            margins.append(found)
            place = np.searchsorted(steps, found)
            failures.append(float(broken[np.arange(len(found)), place].mean()))
        dense_margins, thin_margins = margins
        dense_failures, thin_failures = failures
        rows.append(
            GapRow(
                tolerance=float(tolerance),
                dense_margin=float(dense_margins.mean()),
                thin_margin=float(thin_margins.mean()),
                dense_failures=dense_failures,
                thin_failures=thin_failures,
                thin_larger=float((thin_margins > dense_margins).mean()),
            )
        )
    return GapError(
        dense=sample.n_values,
        thin=thin_values,
        missed=tuple(float(value) for value in missed.mean(axis=0)),
        worst_missed=tuple(float(value) for value in missed.max(axis=0)),
        rows=tuple(rows),
    )
