"""Bounds at several confidences, so that a page can look margins up by itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.core.plain import plain_values
from safemargin.errors import SafemarginError
from safemargin.margins.fitting import NoBound
from safemargin.margins.lookup import Margins
from safemargin.study.study import Study
from safemargin.validation.defaults import (
    CONFIDENCES,
    DEFAULT_CONFIDENCE,
    default_confidence,
    default_tolerance,
    median_proxy,
    natural_moments_needed,
)


@dataclass(frozen=True, eq=False)
class MarginTables:
    """The margins of a study for one proxy at several confidences."""

    proxy: str
    n_values: tuple[int, ...]
    looks_at_n: bool
    tables: tuple[Margins, ...]
    """In order of confidence; empty where there is nothing to fit."""
    note: str | None
    """Why there are none."""
    confidence: float
    """The initial choice: 0.95, or the highest below it that the natural moments suffice for."""
    natural_moments: int
    """How many the fits were calibrated on."""
    tolerance: float
    """The initial choice: in the middle of a plateau of the median margin."""
    median_proxy: float | None
    """The proxy of the median natural decision; None where it is unknown."""
    highest_tolerance: float
    """From here on the largest n is affordable everywhere."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; null: no bound."""
        tables = [_table(margins, self.natural_moments) for margins in self.tables]
        return {**vars(self), "tables": tables}


def margin_tables(study: Study, proxy: str | None = None) -> MarginTables:
    """Fit the study's margins at each confidence; the note says why there are none."""
    name = study.default_proxy if proxy is None else proxy
    fits: list[Margins] = []
    note = None
    try:
        # The tables carry the warning as a note.
        with warnings.catch_warnings(action="ignore", category=NoBound):
            fits = [study.fit(confidence, proxy=name) for confidence in CONFIDENCES]
    except SafemarginError as error:
        note = str(error)
    bounded = [margins for margins in fits if margins.bound.unbounded < 1]
    natural = int(fits[0].bound.details["natural_moments"]) if fits else 0
    confidence = default_confidence(natural) if fits else DEFAULT_CONFIDENCE
    first = next((each for each in bounded if each.confidence == confidence), None)
    if fits and not bounded:
        note = fits[0].notes[0] if fits[0].notes else "the data allow no bound at any confidence"
    finite = [each.bound.upper[np.isfinite(each.bound.upper)] for each in bounded]
    highest = max((float(upper.max()) for upper in finite if len(upper)), default=0.0)
    return MarginTables(
        proxy=name,
        n_values=study.settings.n_values,
        looks_at_n=bool(fits) and fits[0].bound.looks_at_n,
        tables=tuple(fits),
        note=note,
        confidence=confidence,
        natural_moments=natural,
        tolerance=default_tolerance(first),
        median_proxy=None if first is None else median_proxy(first),
        highest_tolerance=highest if highest > 0 else 1.0,
    )


def _table(margins: Margins, natural: int) -> dict[str, Any]:
    bound = margins.bound
    rows = bound.grid if bound.looks_at_n else bound.grid[:1]
    needed = natural_moments_needed(margins.confidence)
    return {
        "confidence": margins.confidence,
        "method": margins.method,
        "enough": natural >= needed and bound.unbounded < 1,
        "needed": needed,
        "notes": list(margins.notes),
        "grid": rows.tolist(),
        "upper": plain_values(bound.upper.tolist()),
    }
