"""Comparison of all methods and proxies on one study by cross-validation: which one to use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.notebook import table_html
from safemargin.core.records import Tuples
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean
from safemargin.margins.bounds.boosted import one_thread
from safemargin.margins.bounds.sample import Booleans, Sample
from safemargin.margins.bounds.table import Estimand, check_confidence
from safemargin.margins.methods import METHODS
from safemargin.validation.gaps import GapError, gap_error
from safemargin.validation.heldout import (
    BINS,
    FOLDS,
    HeldOut,
    Share,
    Variant,
    clopper_pearson,
    hold_out_all,
    typical_tolerances,
)
from safemargin.validation.paired import margins_differ

VARIANTS: dict[str, Variant] = {
    **{name: (name, {}) for name in METHODS},
    "paper, no lift": ("paper", {"lift": False}),
}
"""What is compared: name → method and options. Only those in `METHODS` can win."""


@dataclass(frozen=True)
class Candidate:
    """One method with one proxy, judged on natural moments that its fit has not seen."""

    method: str
    proxy: str
    coverage: Share
    """How often C_n ≤ b_n held, over all n; the n of one moment are not independent."""
    worst_part: Share
    """The coverage in the fifth of the proxy's range where it is lowest."""
    chain_failures: tuple[Share, ...]  # for each tolerance
    mean_margins: tuple[float, ...]  # for each tolerance
    no_bound: float
    """The share of natural moments without a bound or above the range: their margin is 0."""
    holds: bool
    """It makes a promise that the data do not refute: neither by the coverage overall or in any
    part, nor by the chain at any tolerance."""
    notes: tuple[str, ...]

    @property
    def can_win(self) -> bool:
        """Whether it holds, and is not shown for reference only."""
        return self.holds and self.method in METHODS

    @property
    def names(self) -> dict[str, str]:
        """Its method and proxy."""
        return {"method": self.method, "proxy": self.proxy}


@dataclass(frozen=True)
class Comparison:
    """All candidates, and the best for each tolerance."""

    confidence: float
    estimand: Estimand
    tolerances: tuple[float, ...]
    moments: int
    natural_moments: int
    candidates: tuple[Candidate, ...]
    winners: tuple[Candidate | None, ...]  # for each tolerance; None: no candidate holds
    undecided: tuple[tuple[Candidate, ...], ...]  # for each tolerance
    """Others that hold, and whose mean margin does not differ from the winner's beyond noise."""
    left_out: tuple[str, ...]
    """Methods that could not be tried, and why."""
    gaps: GapError | None

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{one.method}, {one.proxy}",
                one.coverage.share,
                one.worst_part.share,
                *(f"{mean:.2f}" for mean in one.mean_margins),
                "yes" if one.holds else "no",
            ]
            for one in self.candidates
        ]
        best = [
            f"Best at a tolerance of {tolerance:g}: "
            + ("none holds" if winner is None else f"{winner.method} with {winner.proxy}")
            for tolerance, winner in zip(self.tolerances, self.winners, strict=True)
        ]
        margins = [f"mean margin at {tolerance:g}" for tolerance in self.tolerances]
        return table_html(
            f"Methods and proxies on {self.natural_moments} unseen natural moments (promised "
            f"coverage {self.confidence:g})",
            ["method, proxy", "coverage", "in its worst part", *margins, "holds"],
            rows,
            notes=[*best, *self.left_out],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        data = asdict(self)
        data["winners"] = [None if winner is None else winner.names for winner in self.winners]
        data["undecided"] = [[other.names for other in others] for others in self.undecided]
        return data

    def rivals(self) -> tuple[Candidate, ...]:
        """Return the candidates that can win: they hold, and their method can be fitted."""
        return tuple(each for each in self.candidates if each.can_win)


def compare_samples(
    samples: Mapping[str, Sample],
    *,
    confidence: float = 0.95,
    tolerances: Sequence[float] | None = None,
    methods: Sequence[str] | None = None,
    minimum_bandwidth: float = 0.0,
    folds: int = FOLDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Judge every method with every proxy (name → sample) by cross-validation.

    Of the methods that hold, the winner at a tolerance grants natural moments the largest mean
    margin; among equals, the earlier proxy and method wins; a paired test says from which others
    the moments cannot tell it (see `validation.paired`). Choosing the best of many on the data
    that judge them flatters the winner a little; `validate` on fresh moments would not.
    """
    check_confidence(confidence)
    chosen = list(VARIANTS) if methods is None else list(methods)
    for name in chosen:
        if name not in VARIANTS:
            raise InvalidInput(f"the method {name!r} is unknown; {did_you_mean(name, VARIANTS)}")
    if not samples:
        raise InvalidInput("there is nothing to compare: no proxy")
    first = next(iter(samples.values()))
    if not first.natural.any():
        raise InvalidInput("a comparison needs natural moments, and there are none: collect some")
    if tolerances is not None and (not len(tolerances) or min(tolerances) < 0):
        raise InvalidInput("a comparison needs one or more tolerances of at least 0")
    variants = {
        name: (method, {"minimum_bandwidth": minimum_bandwidth, **options})
        for name, (method, options) in VARIANTS.items()
        if name in chosen
    }
    total, done = len(samples) * len(variants) * folds, itertools.count(1)
    found: list[tuple[str, str, HeldOut]] = []
    left_out: dict[str, None] = {}  # each reason once
    for proxy, sample in samples.items():
        with one_thread():
            judged = hold_out_all(
                sample,
                variants,
                confidence=confidence,
                folds=folds,
                after_each=lambda: progress(next(done), total),
            )
        for name, outcome in judged.items():
            if isinstance(outcome, HeldOut):
                found.append((name, proxy, outcome))
            else:
                missing = isinstance(outcome, MissingExtra)
                left_out[str(outcome) if missing else f"{name} with {proxy}: {outcome}"] = None
    if not found:
        raise InvalidInput("nothing could be compared: " + "; ".join(left_out))
    if tolerances is None:
        tolerances = typical_tolerances(found[0][2].upper)
    levels = tuple(float(tolerance) for tolerance in tolerances)
    candidates = tuple(_candidate(name, proxy, judged, levels) for name, proxy, judged in found)
    able = {each: row[2] for each, row in zip(candidates, found, strict=True) if each.can_win}
    winners = tuple(
        max(able, key=lambda candidate: candidate.mean_margins[level], default=None)
        for level in range(len(levels))
    )
    return Comparison(
        confidence=confidence,
        estimand=first.estimand,
        tolerances=levels,
        moments=first.moment_count,
        natural_moments=len(np.unique(first.moments[first.natural])),
        candidates=candidates,
        winners=winners,
        undecided=tuple(
            _undecided(able, winner, tolerance)
            for winner, tolerance in zip(winners, levels, strict=True)
        ),
        left_out=tuple(left_out),
        gaps=gap_error(first, confidence=confidence, tolerances=levels),
    )


def compare_tuples(
    every: Sequence[Tuples], *, estimand: Estimand = "mean", **options: Any
) -> Comparison:
    """`compare_samples` for the moments of a study, given once for each proxy."""
    samples = {tuples.proxy: Sample.from_tuples(tuples, estimand) for tuples in every}
    return compare_samples(samples, **options)


def _candidate(name: str, proxy: str, found: HeldOut, tolerances: tuple[float, ...]) -> Candidate:
    natural = found.sample.natural
    parts = [found.coverage(rows) for rows in _parts(found)]
    worst = min(parts, key=lambda part: 1.0 if part.share is None else part.share)
    failures = tuple(found.chain(natural, tolerance) for tolerance in tolerances)
    return Candidate(
        method=name,
        proxy=proxy,
        coverage=found.coverage(natural),
        worst_part=worst,
        chain_failures=failures,
        mean_margins=tuple(float(found.margins(each)[natural].mean()) for each in tolerances),
        no_bound=float((~found.promised[natural]).mean()),
        holds=_holds(found, failures),
        notes=tuple(found.notes),
    )


def _undecided(
    able: Mapping[Candidate, HeldOut], winner: Candidate | None, tolerance: float
) -> tuple[Candidate, ...]:
    """Return the others whose margins the moments cannot tell from the winner's."""
    if winner is None:
        return ()
    others = {each: found for each, found in able.items() if each is not winner}
    return tuple(
        each
        for each, found in others.items()
        if not margins_differ(able[winner], found, tolerance, tests=len(others))
    )


def _parts(found: HeldOut) -> list[Booleans]:
    """Mark the natural rows of each part of the proxy's range."""
    return [found.sample.natural & (found.bins == part) for part in range(BINS)]


def _holds(found: HeldOut, failures: tuple[Share, ...]) -> bool:
    """Whether nothing refutes the promise: the whole range and its five parts for every n.

    Each of these tests is done at a level of 0.05 divided by their number.
    """
    natural = found.sample.natural
    if not found.promised[natural].any():
        return False  # no bound anywhere: there is no promise
    shares = [
        found.coverage(rows, column)
        for rows in (natural, *_parts(found))
        for column in range(len(found.sample.n_values))
    ]
    tests = [clopper_pearson(one.count, one.tested, 1 - 0.1 / len(shares)) for one in shares]
    kept = all(test.high >= found.confidence for test in tests if test.tested)
    return kept and all(share.low <= 1 - found.confidence for share in failures)
