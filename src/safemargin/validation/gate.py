"""A gate between checkpoints: is the new agent worse than the old one?

All judged checks share one error rate (Bonferroni): each interval misses on either side with
`error_rate` divided by their number. So the chance that any check says 'worse' of an agent that is
no worse is at most the error rate, and so is the chance that an agent passes which is worse, in any
check, by more than what matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from safemargin.errors import GateClosed, InvalidInput, did_you_mean
from safemargin.margins.bounds.table import check_confidence
from safemargin.validation import checks
from safemargin.validation.baseline import Baseline
from safemargin.validation.comparable import is_paired, refuse_incomparable
from safemargin.validation.verdicts import DEFAULT_MATTERS, Check, Question, judge, matter

FEWEST_GAMES = 10
"""Fewer games than this are not compared."""


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What a gate checks, and what it takes for a difference."""

    tolerances: tuple[float, ...] = ()
    """Accepted losses ζ, in reward units; empty: one that tells the old agent's moments apart."""
    call_at: int | None = None
    """Decisions with a margin below this count as called; None: 2, or the next n there is."""
    confidence: float | None = None
    """β of the margins; None: the highest up to 0.95 that the natural moments suffice for."""
    worst: float = 0.05
    """The share of moments with the greatest losses whose mean loss is compared."""
    matters: Mapping[str, str | float | None] = field(default_factory=dict)
    """Kind of check → the smallest difference that matters: a number, or a share like '5%'."""
    error_rate: float = 0.05
    """The chance that any check says 'worse' of an agent that is no worse."""
    other_versions: bool = False
    """Compare although the studies were made with other versions of libraries."""

    def __post_init__(self) -> None:
        for tolerance in self.tolerances:
            if not (tolerance >= 0 and math.isfinite(tolerance)):
                raise InvalidInput(f"the tolerance must be at least 0, got {tolerance}")
        for name in ("worst", "error_rate"):
            value = getattr(self, name)
            if not 0 < value <= 0.5:
                raise InvalidInput(f"{name} must lie above 0 and be at most 0.5, got {value}")
        if self.call_at is not None and self.call_at < 1:
            raise InvalidInput(f"call_at must be at least 1, got {self.call_at}")
        if self.confidence is not None:
            check_confidence(self.confidence)
        for name, value in self.matters.items():
            if name not in DEFAULT_MATTERS:
                known = did_you_mean(name, DEFAULT_MATTERS)
                raise InvalidInput(f"there is no check {name!r} that something matters to; {known}")
            matter(value, 1.0)


@dataclass(frozen=True)
class GateResult:
    """The verdict of all checks, and everything it rests on."""

    old: str
    new: str
    environment: str
    paired: bool
    old_moments: int
    """Natural moments."""
    new_moments: int
    confidence: float
    tolerances: tuple[float, ...]
    call_at: int
    worst: float
    error_rate: float
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """'worse' if any check is; else 'cannot tell' if any check cannot; else 'passed'."""
        found = {check.verdict for check in self.checks}
        for verdict in ("worse", "cannot tell"):
            if verdict in found:
                return verdict
        return "passed"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        of = {
            verdict: [c.name for c in self.checks if c.verdict == verdict]
            for verdict in ("worse", "cannot tell")
        }
        if of["worse"]:
            return f"worse: {', '.join(of['worse'])}"
        if of["cannot tell"]:
            text = f"cannot tell yet: {', '.join(of['cannot tell'])}"
            more = self.more_moments
            return text if more is None else f"{text}; about {more:,} more natural moments of each"
        return "passed: no check found a deterioration that matters"

    @property
    def more_moments(self) -> int | None:
        """How many more natural moments of each study would decide; None if that is unknown."""
        needed = [c.needed for c in self.checks if c.verdict == "cannot tell"]
        have = min(self.old_moments, self.new_moments)
        if not needed or any(each is None for each in needed):
            return None
        return max(max(each for each in needed if each is not None) - have, 1)

    def check(self, *, undecided: bool = False) -> GateResult:
        """Raise GateClosed unless the checkpoint passes; with `undecided`, only if it is worse."""
        __tracebackhide__ = True  # pytest shows the line of the test
        if self.verdict == "worse" or (self.verdict == "cannot tell" and not undecided):
            raise GateClosed(f"{self.new} beside {self.old}: {self.sentence}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        summary = {name: getattr(self, name) for name in ("verdict", "sentence", "more_moments")}
        return {**summary, **asdict(self)}


def compare_checkpoints(
    old: Baseline,
    new: Baseline,
    *,
    tolerances: tuple[float, ...],
    confidence: float,
    call_at: int,
    options: GateOptions,
) -> GateResult:
    """Compare a new checkpoint with an old one; everything left open in `options` is given."""
    notes = refuse_incomparable(old, new, other_versions=options.other_versions)
    if call_at > old.n_values[-1]:
        raise InvalidInput(
            f"call_at must be at most {old.n_values[-1]}, the largest n that was measured, got "
            f"{call_at}: fewer than that are afforded everywhere, so that nothing could differ"
        )
    paired = is_paired(old, new)
    old_side, new_side = checks.sides(old, new, paired=paired)
    for side in (old_side, new_side):
        if int(side.used.sum()) < FEWEST_GAMES:
            raise InvalidInput(
                f"a gate needs {FEWEST_GAMES} natural moments that can be compared, and "
                f"{side.baseline.source} has {int(side.used.sum())}; collect more"
            )
    if not paired:
        notes.append(
            f"not paired: the studies have the seeds {old.seed} and {new.seed}; with the same "
            "seed, both agents meet the same starts and fewer moments decide"
        )
    if old.policy["identity"] == new.policy["identity"]:
        notes.append("the same agent on both sides: equal policy hashes")
    plan = _plan(old_side, new_side, tolerances, confidence, call_at, options, paired=paired)
    judged = sum(question.matters is not None for question in plan)
    error = options.error_rate / max(judged, 1)
    found = tuple(judge(question, old_side, new_side, error) for question in plan)
    return GateResult(
        old=old.title,
        new=new.title,
        environment=str(new.environment["name"]),
        paired=paired,
        old_moments=int(old_side.used.sum()),
        new_moments=int(new_side.used.sum()),
        confidence=confidence,
        tolerances=tolerances,
        call_at=call_at,
        worst=options.worst,
        error_rate=options.error_rate,
        checks=found,
        notes=tuple(notes),
    )


def _plan(
    old: checks.Side,
    new: checks.Side,
    tolerances: tuple[float, ...],
    confidence: float,
    call_at: int,
    options: GateOptions,
    *,
    paired: bool,
) -> list[Question]:
    """Return the questions that the gate asks."""

    def ask(
        kind: str, name: str, unit: str, better: bool | None, measure: Any, **more: Any
    ) -> Question:
        said = kind in options.matters
        matters = options.matters[kind] if said else DEFAULT_MATTERS[kind]
        bound = partial(measure, **more)
        return Question(kind, name, unit, better, matters, said, bound)

    fitted = {"confidence": confidence}
    plan = [ask("return", "return", "reward a game", True, checks.returns, paired=paired)]
    for tolerance in tolerances:
        name = f"affordable actions at tolerance {tolerance:g}"
        at = {"tolerance": tolerance, "paired": paired}
        plan.append(ask("affordable", name, "actions", True, checks.affordable, **at))
        name = f"decisions that afford fewer than {call_at} at tolerance {tolerance:g}"
        plan.append(ask("critical", name, "share", False, checks.critical, call_at=call_at, **at))
        name = f"decisions with a margin below {call_at} at tolerance {tolerance:g}"
        plan.append(
            ask("called", name, "share", False, checks.called, call_at=call_at, **at, **fitted)
        )
    name = f"loss at the worst {100 * options.worst:g} % of moments"
    tail = ask("worst", name, "reward", False, checks.worst, share=options.worst, paired=paired)
    fewest = math.ceil(checks.FEWEST_IN_TAIL / options.worst)
    plan.append(replace(tail, fewest_moments=fewest))
    for tolerance in tolerances:
        name = f"margins that break at tolerance {tolerance:g}"
        plan.append(
            ask("margins", name, "share", False, checks.margins_hold, tolerance=tolerance, **fitted)
        )
    if old.baseline.proxy == new.baseline.proxy:
        plan.append(ask("drift", "drift of the proxy", "ranks", None, checks.drift, paired=paired))
    return plan
