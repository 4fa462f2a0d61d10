"""All methods and all proxies on one study, by cross-validation: which one to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.records import Tuples
from safemargin.errors import InvalidInput, MissingExtra, SafemarginError, did_you_mean
from safemargin.margins.bounds.boosted import one_thread
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand, check_confidence
from safemargin.margins.methods import METHODS
from safemargin.validation.gaps import GapError, gap_error
from safemargin.validation.heldout import (
    BINS,
    FOLDS,
    HeldOut,
    Share,
    clopper_pearson,
    hold_out_all,
    typical_tolerances,
)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "paper, no lift": ("paper", {"lift": False}),
}
"""What is compared: name → method and options."""


ONLY_FOR_COMPARISON = ("paper, no lift",)
"""Shown for what it is worth, but no method that a fit can be asked for by name."""


@dataclass(frozen=True)
class Candidate:
    """One method with one proxy, judged on natural moments that its fit had not seen."""

    method: str
    proxy: str
    coverage: Share
    """How often C_n ≤ b_n, over all n; the n of one moment are not independent."""
    worst_part: Share
    """The same in the fifth of the proxy's range where it is lowest."""
    chain_failures: tuple[Share, ...]  # for each tolerance
    mean_margins: tuple[float, ...]  # for each tolerance
    no_bound: float
    """Share of natural moments without a bound or above the range: their margin is 0."""
    holds: bool
    """It promises something, and nothing here shows that it breaks it: neither the coverage over
    all parts, nor the worst part, nor the chain at any tolerance is refuted."""
    notes: tuple[str, ...]


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
    left_out: tuple[str, ...]
    """Methods that could not be tried, and why."""
    gaps: GapError | None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts."""
        data = asdict(self)
        data["winners"] = [
            None if winner is None else {"method": winner.method, "proxy": winner.proxy}
            for winner in self.winners
        ]
        return data


def compare_samples(
    samples: Mapping[str, Sample],
    *,
    confidence: float = 0.95,
    tolerances: Sequence[float] | None = None,
    methods: Sequence[str] | None = None,
    minimum_bandwidth: float = 0.0,
    folds: int = FOLDS,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Judge every method with every proxy (name → sample) by cross-validation.

    The winner at a tolerance grants the largest mean margin to natural moments among those that
    hold; among equals, the earlier proxy and method. Choosing the best of many on the data that
    judge them flatters the winner a little; `validate` on fresh moments would not.
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
    total, done = len(samples) * len(chosen) * folds, 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    found: list[tuple[str, str, HeldOut]] = []
    left_out: list[str] = []
    for proxy, sample in samples.items():
        variants = {
            name: (method, {"minimum_bandwidth": minimum_bandwidth, **options})
            for name, (method, options) in VARIANTS.items()
            if name in chosen
        }
        with one_thread():
            judged = hold_out_all(
                sample, variants, confidence=confidence, folds=folds, after_each=step
            )
        for name, outcome in judged.items():
            if isinstance(outcome, MissingExtra):
                left_out.append(str(outcome))
            elif isinstance(outcome, SafemarginError):
                left_out.append(f"{name} with {proxy}: {outcome}")
            else:
                found.append((name, proxy, outcome))
    left_out = list(dict.fromkeys(left_out))  # each once
    if not found:
        raise InvalidInput("nothing could be compared: " + "; ".join(left_out))
    if tolerances is None:
        tolerances = typical_tolerances(found[0][2].upper)
    levels = tuple(float(tolerance) for tolerance in tolerances)
    candidates = tuple(_candidate(name, proxy, judged, levels) for name, proxy, judged in found)
    winners = []
    for place in range(len(levels)):
        able = [
            candidate
            for candidate in candidates
            if candidate.holds and candidate.method not in ONLY_FOR_COMPARISON
        ]
        winners.append(
            max(able, key=lambda candidate: candidate.mean_margins[place]) if able else None
        )
    return Comparison(
        confidence=confidence,
        estimand=first.estimand,
        tolerances=levels,
        moments=first.moment_count,
        natural_moments=len(np.unique(first.moments[first.natural])),
        candidates=candidates,
        winners=tuple(winners),
        left_out=tuple(left_out),
        gaps=gap_error(first, confidence=confidence, tolerances=levels),
    )


def compare_tuples(
    every: Sequence[Tuples], *, estimand: Estimand = "mean", **options: Any
) -> Comparison:
    """`compare_samples` for the moments of a study, once for each proxy."""
    samples = {tuples.proxy: Sample.from_tuples(tuples, estimand) for tuples in every}
    return compare_samples(samples, **options)


def _candidate(name: str, proxy: str, found: HeldOut, tolerances: tuple[float, ...]) -> Candidate:
    natural = found.sample.natural
    parts = [found.coverage(natural & (found.bins == part)) for part in range(BINS)]
    worst = min(parts, key=lambda part: 1.0 if part.share is None else part.share)
    failures = tuple(found.chain(natural, tolerance) for tolerance in tolerances)
    return Candidate(
        method=name,
        proxy=proxy,
        coverage=found.coverage(natural),
        worst_part=worst,
        chain_failures=failures,
        mean_margins=tuple(
            float(found.margins(tolerance)[natural].mean()) for tolerance in tolerances
        ),
        no_bound=float((~found.promised[natural]).mean()),
        holds=_holds(found, failures),
        notes=tuple(found.notes),
    )


def _holds(found: HeldOut, failures: tuple[Share, ...]) -> bool:
    """Not refuted: the whole and five parts are looked at for all n, each at 0.05 / looks."""
    natural = found.sample.natural
    if not found.promised[natural].any():
        return False  # no bound anywhere: there is nothing that could hold
    shares = [
        found.coverage(rows, column)
        for rows in (natural, *(natural & (found.bins == part) for part in range(BINS)))
        for column in range(len(found.sample.n_values))
    ]
    looks = [clopper_pearson(one.count, one.tested, 1 - 0.1 / len(shares)) for one in shares]
    kept = all(look.high >= found.confidence for look in looks if look.tested)
    return kept and all(share.low <= 1 - found.confidence for share in failures)
