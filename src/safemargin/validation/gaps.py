"""The gap error (paper § III-D): what a thin S = {1, 2, 4, …} misses, judged by a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.margins.bounds.sample import Sample
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD, fit_sample
from safemargin.validation.heldout import typical_tolerances


@dataclass(frozen=True)
class GapRow:
    """Margins from the powers of two beside those from all n, at one tolerance."""

    tolerance: float
    dense_margin: float
    """The mean margin of natural moments, from all n."""
    thin_margin: float
    """The mean margin of natural moments, from the powers of two only."""
    dense_failures: float
    """Share of natural moments at which some n' ≤ the dense margin broke the tolerance."""
    thin_failures: float
    """The same for the thin margin, counting the n' in the gaps too."""
    thin_larger: float
    """Share of natural moments at which the thin margin is the larger one."""


@dataclass(frozen=True)
class GapError:
    """How far the powers of two were off at natural moments (which the fits have seen)."""

    dense: tuple[int, ...]
    thin: tuple[int, ...]
    missed: tuple[float, ...]  # for each thin n: by how much it underestimates C_n on average
    worst_missed: tuple[float, ...]  # the same at the worst moment
    rows: tuple[GapRow, ...]


def powers_of_two(n_values: Sequence[int]) -> tuple[int, ...]:
    """Return the powers of two among n_values."""
    return tuple(n for n in n_values if n & (n - 1) == 0)


def is_dense(n_values: Sequence[int]) -> bool:
    """Whether the gaps between powers of two were measured: 1, 2, 3, 4, … without holes."""
    return len(n_values) >= 3 and list(n_values) == list(range(1, len(n_values) + 1))


def gap_error(
    sample: Sample,
    *,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    tolerances: Sequence[float] | None = None,
    **options: Any,
) -> GapError | None:
    """Fit with all n and with the powers of two only; None if S itself has holes."""
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
    rows = []
    if tolerances is None:
        tolerances = typical_tolerances(tables[0].bound.upper)
    for tolerance in tolerances:
        margins, failures = [], []
        for part, table in zip((sample, thin), tables, strict=True):
            proxies = part.proxies[natural]
            found = table.lookup(proxies if part.looks_at_n else proxies[:, 0], tolerance).margin
            margins.append(found)
            within = np.array(sample.n_values) <= found[:, None]  # [rows, n]
            failures.append(float((within & (whole > tolerance)).any(axis=1).mean()))
        rows.append(
            GapRow(
                tolerance=float(tolerance),
                dense_margin=float(margins[0].mean()),
                thin_margin=float(margins[1].mean()),
                dense_failures=failures[0],
                thin_failures=failures[1],
                thin_larger=float((margins[1] > margins[0]).mean()),
            )
        )
    return GapError(
        dense=sample.n_values,
        thin=thin_values,
        missed=tuple(float(value) for value in missed.mean(axis=0)),
        worst_missed=tuple(float(value) for value in missed.max(axis=0)),
        rows=tuple(rows),
    )
