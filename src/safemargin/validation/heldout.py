"""Cross-validation of a bound on moments that its fit has not seen, with confidence intervals.

Every moment is judged by a bound that was fitted without its episode. Every method is judged by
what a margin relies on: C_n, the largest loss over all n' ≤ n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from safemargin.core.records import PHASES, Floats, Phase
from safemargin.errors import InvalidInput, SafemarginError
from safemargin.margins.bounds.ranks import assign_folds, check_groups
from safemargin.margins.bounds.sample import Booleans, Integers, Sample
from safemargin.margins.bounds.table import check_confidence
from safemargin.margins.methods import fit_sample

FOLDS = 5
BINS = 5


@dataclass(frozen=True)
class Share:
    """A proportion with its 95 % interval (Clopper–Pearson)."""

    count: int
    tested: int
    share: float | None
    """None if nothing was tested."""
    low: float
    high: float


def clopper_pearson(count: int, tested: int, level: float = 0.95) -> Share:
    """Return a binomial share with its exact interval, which covers with at least the level."""
    if not 0 <= count <= tested:
        raise InvalidInput(f"a share needs 0 ≤ count ≤ tested, got {count} of {tested}")
    if not 0 < level < 1:
        raise InvalidInput(f"the level of an interval must lie between 0 and 1, got {level}")
    if tested == 0:
        return Share(0, 0, None, 0.0, 1.0)
    from scipy.stats import beta  # here: importing a study must not load scipy

    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, tested - count + 1))
    high = 1.0 if count == tested else float(beta.ppf(1 - tail, count + 1, tested - count))
    return Share(count, tested, count / tested, low, high)


def moments_to_show(miss: float, confidence: float = 0.95, *, power: float = 0.8) -> int:
    """Return how many tests it takes to show that a bound covers β − miss, not β.

    One-sided at 5 %, with this power, by the normal approximation: 3,118 for one percentage point
    at β = 0.95.
    """
    check_confidence(confidence)
    if not 0 < miss < confidence:
        raise InvalidInput(f"the miss must lie between 0 and the confidence, got {miss}")
    if not 0 < power < 1:
        raise InvalidInput(f"the power must lie between 0 and 1, got {power}")
    promised, actual = confidence, confidence - miss
    z = NormalDist().inv_cdf
    width = z(0.95) * math.sqrt(promised * (1 - promised)) + z(power) * math.sqrt(
        actual * (1 - actual)
    )
    return math.ceil((width / miss) ** 2)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Every row of a sample beside the bound that was fitted without it."""

    sample: Sample
    upper: Floats  # [rows, n] infinite where there is no bound, or the proxy lies above the range
    above: Booleans  # [rows] the proxy lies above the range
    bins: Integers  # [rows] which fifth of the natural proxies
    edges: Floats  # [BINS + 1] the proxies at which the fifths begin and end
    confidence: float
    method: str
    notes: list[str]
    """The reasons why fits found no bound, each once."""
    refits: list[Floats] = field(default_factory=list)
    """Like `upper`, but the bound of each fold's fit at every row, each [rows, n]."""

    @property
    def held(self) -> Booleans:
        """C_n ≤ b_n, [rows, n]."""
        return np.asarray(self.sample.running_maximum <= self.upper)

    @property
    def promised(self) -> Booleans:
        """Where there is a bound that can hold or fail, [rows, n]."""
        return np.isfinite(self.upper)

    def coverage(self, rows: Booleans, column: int | None = None) -> Share:
        """Return how often the bound held, over some rows and one n or all.

        Only the first run of each moment is a test: its runs are not independent.
        """
        tests = rows & self.sample.first_runs
        columns = slice(None) if column is None else slice(column, column + 1)
        promised = self.promised[tests, columns]
        held = self.held[tests, columns] & promised
        return clopper_pearson(int(held.sum()), int(promised.sum()))

    def affordable(self, tolerance: float, upper: Floats | None = None) -> Booleans:
        """Return which n are affordable at each row, because all bounds up to n are, [rows, n].

        By default the bounds are those fitted without the row.
        """
        bounds = self.upper if upper is None else upper
        return np.asarray(np.logical_and.accumulate(bounds <= tolerance, axis=1))

    def margins(self, tolerance: float, upper: Floats | None = None) -> Integers:
        """Return the margin at each row, [rows]; 0 above the range and without a bound."""
        granted = self.affordable(tolerance, upper).sum(axis=1)
        return np.asarray(np.array([0, *self.sample.n_values])[granted])

    def chain_failures(self, tolerance: float) -> Booleans:
        """Whether some n' ≤ the margin broke the tolerance, [rows]; a margin of 0 cannot fail."""
        broken = self.sample.running_maximum > tolerance  # [rows, n]
        return np.asarray((self.affordable(tolerance) & broken).any(axis=1))

    def chain(self, rows: Booleans, tolerance: float) -> Share:
        """Return how often a margin failed, over those of some rows that have a bound."""
        tests = rows & self.sample.first_runs & self.promised[:, 0]
        failed = self.chain_failures(tolerance)[tests]
        return clopper_pearson(int(failed.sum()), len(failed))

    def phase(self, phase: Phase) -> Booleans:
        """Mark the natural or the spread rows."""
        return self.sample.natural if phase == "natural" else ~self.sample.natural


Variant = tuple[str, Mapping[str, Any]]
"""A method and its options."""

Relearn = Callable[[Booleans], Floats]
"""Learns a proxy without some moments: a mask of those seen → the values of all, [moments]."""


def hold_out(
    sample: Sample,
    *,
    method: str,
    confidence: float,
    folds: int = FOLDS,
    relearn: Relearn | None = None,
    **options: Any,
) -> HeldOut:
    """Fit without each fold in turn, and judge the moments of that fold."""
    found = hold_out_all(
        sample, {method: (method, options)}, confidence=confidence, folds=folds, relearn=relearn
    )
    judged = found[method]
    if isinstance(judged, SafemarginError):
        raise judged
    return judged


def hold_out_all(
    sample: Sample,
    variants: Mapping[str, Variant],
    *,
    confidence: float,
    folds: int = FOLDS,
    after_each: Callable[[], object] = lambda: None,
    relearn: Relearn | None = None,
) -> dict[str, HeldOut | SafemarginError]:
    """`hold_out` for several variants on the same folds: name → result, or why there is none.

    With `relearn`, a learned proxy is learned anew without each fold.
    """
    if folds < 2:
        raise InvalidInput(f"cross-validation needs at least 2 folds, got {folds}")
    check_groups(sample, 3)  # a fit without one of them still needs two
    fold = assign_folds(sample, folds)
    bins, edges = natural_bins(sample)
    found: dict[str, HeldOut | SafemarginError] = {
        name: HeldOut(
            sample=sample,
            upper=np.full(sample.losses.shape, np.inf),
            above=np.zeros(len(sample), dtype=bool),
            bins=bins,
            edges=edges,
            confidence=confidence,
            method=name,
            notes=[],
        )
        for name in variants
    }
    for left_out in range(folds):
        tested = fold == left_out
        known = sample if relearn is None else _relearned(sample, ~tested, relearn)
        rest = known.take(~tested)
        for name, (method, options) in variants.items():
            judged = found[name]
            after_each()
            if isinstance(judged, SafemarginError):
                continue
            try:
                bound = fit_sample(rest, method=method, confidence=confidence, **options)
            except InvalidInput as error:  # e.g. a proxy that does not vary, a missing library
                found[name] = error
                continue
            high = known.proxies > bound.grid[:, -1]  # [rows, n]
            limits = bound.at(known.proxies if sample.looks_at_n else known.proxies[:, 0])
            judged.refits.append(np.where(high, np.inf, limits))
            judged.upper[tested] = judged.refits[-1][tested]
            judged.above[tested] = high[tested].any(axis=1)
            if bound.unbounded:
                judged.notes.extend(note for note in bound.notes if note not in judged.notes)
    return found


def _relearned(sample: Sample, seen: Booleans, relearn: Relearn) -> Sample:
    """Return the sample with the values of a proxy that was learned from the rows seen only."""
    values = relearn(seen[sample.first_runs])[sample.moments]  # [rows]
    return replace(sample, proxies=np.repeat(values[:, None], len(sample.n_values), axis=1))


def natural_bins(sample: Sample, count: int = BINS) -> tuple[Integers, Floats]:
    """Return which fifth of the natural proxies each row lies in, and the edges of the fifths.

    For a proxy that looks at n, the first column counts.
    """
    proxies = sample.proxies[:, 0]
    natural = proxies[sample.natural] if sample.natural.any() else proxies
    edges = np.quantile(natural, np.linspace(0, 1, count + 1))
    edges[0], edges[-1] = proxies.min(), proxies.max()
    return np.searchsorted(edges[1:-1], proxies, side="right"), edges


@dataclass(frozen=True)
class CoverageRow:
    """How often C_n ≤ b_n held on unseen moments of one phase, in one part of the proxy's range."""

    phase: Phase
    n: int | None
    """None: all n together (of the same moments, so the interval is too narrow)."""
    part: int | None
    """Which fifth of the natural proxies, from 1; None: all of them."""
    low_proxy: float
    high_proxy: float
    held: Share


@dataclass(frozen=True)
class ChainRow:
    """How often some n' ≤ the margin broke the tolerance, on unseen moments of one phase."""

    phase: Phase
    tolerance: float
    failed: Share
    mean_margin: float


def coverage_rows(found: HeldOut) -> tuple[CoverageRow, ...]:
    """Return the coverage of each phase: for every n, every fifth, and every n in every fifth."""
    everywhere = np.ones(len(found.sample), dtype=bool)
    parts: list[tuple[int | None, Booleans, Floats]] = [(None, everywhere, found.edges)]
    parts += [(part + 1, found.bins == part, found.edges[part : part + 2]) for part in range(BINS)]
    return tuple(
        CoverageRow(
            phase=phase,
            n=n,
            part=part,
            low_proxy=float(edges[0]),
            high_proxy=float(edges[-1]),
            held=found.coverage(found.phase(phase) & inside, column),
        )
        for phase in PHASES
        if found.phase(phase).any()
        for part, inside, edges in parts
        for column, n in ((None, None), *enumerate(found.sample.n_values))
    )


def chain_rows(found: HeldOut, tolerances: Sequence[float]) -> tuple[ChainRow, ...]:
    """Return how often margins failed, for each phase and tolerance."""
    return tuple(
        ChainRow(
            phase=phase,
            tolerance=float(tolerance),
            failed=found.chain(of_phase, tolerance),
            mean_margin=float(found.margins(tolerance)[of_phase].mean()),
        )
        for phase in PHASES
        if (of_phase := found.phase(phase)).any()
        for tolerance in tolerances
    )


def typical_tolerances(upper: Floats) -> list[float]:
    """Return tolerances that make a difference: quartiles of a table's bounds, rounded."""
    finite = upper[np.isfinite(upper)]
    if not len(finite):
        return [1.0]
    values = np.quantile(np.maximum(finite, 0), [0.25, 0.5, 0.75])
    return sorted({float(f"{value:.1g}") for value in values if value > 0}) or [1.0]
