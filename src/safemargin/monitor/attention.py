"""What calling below a margin costs in attention, and what it catches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.budget import Budget
from safemargin.core.plain import plain_values
from safemargin.core.records import Floats
from safemargin.core.text import counted
from safemargin.margins.bounds.sample import Booleans, Integers
from safemargin.margins.bounds.table import Estimand
from safemargin.monitor.decisions import default_release
from safemargin.validation.heldout import Share, clopper_pearson


@dataclass(frozen=True)
class Caught:
    """The share of bad events that had a call shortly before."""

    share: Share
    by_chance: float
    """Share of all decisions that had a call shortly before: what calling blindly would catch."""


@dataclass(frozen=True)
class AttentionRow:
    """One threshold: what it costs and what it catches."""

    tolerance: float
    call_at: int
    """Calls begin below this margin."""
    release_at: int
    """Calls end at this margin."""
    called: float
    """Share of decisions during a call."""
    calls: int
    """Number of separate calls in all episodes."""
    calls_per_hour: float
    """Calls of all agents together, at the given rate of decisions."""
    mean_length: float | None
    """Mean number of decisions in a call; None without calls."""
    failures: Caught | None
    """The events that count as failures; None where there were none."""
    lead: float | None
    """Median number of decisions from the start of a call to the failure that it caught."""
    measured_loss: float | None
    """Share of the measured loss (n = call_at, natural moments) that fell into calls."""


@dataclass(frozen=True, kw_only=True)
class Hindsight:
    """What looking back on the episodes of a study rests on."""

    budget: Budget | None
    """What people can attend to."""
    fail: str
    """What counts as a failure."""
    why: str
    """What that means, and for a default why it was chosen."""
    rate: float
    """Decisions per second of one agent."""
    agents: int
    within: int
    """A call catches an event if it was open during this many decisions up to the event."""
    episodes: int
    decisions: int
    notes: tuple[str, ...]

    @property
    def agents_text(self) -> str:
        """How many agents, for people: '1 agent' or '12 agents'."""
        return counted(self.agents, "agent")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        found: dict[str, Any] = plain_values(asdict(self))
        return {**found, "budget": None if self.budget is None else self.budget.plain}


@dataclass(frozen=True, kw_only=True)
class Attention(Hindsight):
    """What each threshold would have cost and caught in the episodes of a study."""

    rows: tuple[AttentionRow, ...]
    choices: tuple[AttentionRow | None, ...]
    """For each tolerance: the highest threshold within the budget; None where even 1 exceeds it."""
    tolerances: tuple[float, ...]
    distinct_episodes: int
    held_out: bool
    """Every episode was judged by margins fitted without it and without similar ones."""
    proxy: str
    confidence: float
    method: str
    estimand: Estimand


@dataclass(frozen=True, eq=False)
class PastEpisode:
    """One recorded episode without its opening, and its margins."""

    margins: list[Integers]  # for each tolerance: [decisions]
    fingerprint: str
    """The same for identical episodes."""
    failures: Integers  # decisions at which one happens
    moment: int | None  # the measured decision, if it is a natural moment's
    losses: Floats | None  # [n] measured there


def calling(margins: Integers, call_at: int, release_at: int) -> Booleans:
    """Return during which decisions a monitor without pauses calls, [decisions]."""
    low = margins < call_at
    decided = low | (margins >= release_at)  # in between, nothing changes
    last = np.maximum.accumulate(np.where(decided, np.arange(len(margins)), -1))
    return np.asarray((last >= 0) & low[last])


def attention_row(
    episodes: Sequence[PastEpisode],
    index: int,
    tolerance: float,
    n_values: Sequence[int],
    column: int,
    within: int,
    decisions_per_hour: float,
    agents: int,
) -> AttentionRow:
    """Return what calling below the n of one column costs and catches at one tolerance.

    `index` is that of the tolerance in the episodes' margins, `column` that of n in `n_values`.
    """
    call_at = n_values[column]
    release_at = default_release(n_values, call_at)
    during = [calling(each.margins[index], call_at, release_at) for each in episodes]
    found = tally(during, [each.failures for each in episodes], within)
    loss = loss_called = 0.0
    for episode, on in zip(episodes, during, strict=True):
        if episode.losses is not None and episode.moment is not None:
            measured = max(float(episode.losses[column]), 0.0)
            loss += measured
            loss_called += measured * bool(on[episode.moment])
    return AttentionRow(
        tolerance=float(tolerance),
        call_at=call_at,
        release_at=release_at,
        called=found.called / found.decisions,
        calls=found.calls,
        calls_per_hour=found.calls / found.decisions * decisions_per_hour * agents,
        mean_length=found.called / found.calls if found.calls else None,
        failures=found.caught,
        lead=found.lead,
        measured_loss=loss_called / loss if loss > 0 else None,
    )


@dataclass(frozen=True)
class Tally:
    """What calls at some decisions of many episodes cost and caught."""

    decisions: int
    called: int
    """Decisions during a call."""
    calls: int
    caught: Caught | None
    lead: float | None
    """Median number of decisions from the start of a call to the failure that it caught."""


def tally(during: Sequence[Booleans], failures: Sequence[Integers], within: int) -> Tally:
    """Count what calls, during some decisions of each episode, cost and catch.

    A call catches a failure if it is open during the `within` decisions up to it.
    """
    decisions = called = calls = recent_all = 0
    events: list[bool] = []
    leads: list[int] = []
    for on, failed in zip(during, failures, strict=True):
        starts = on & ~np.concatenate([[False], on[:-1]])
        # The last decision during a call, up to each decision; long ago where there was none.
        last = np.maximum.accumulate(np.where(on, np.arange(len(on)), -within))
        recent = np.arange(len(on)) - last < within
        decisions += len(on)
        called += int(on.sum())
        calls += int(starts.sum())
        recent_all += int(recent.sum())
        events.extend(recent[failed].tolist())
        begun = np.flatnonzero(starts)
        for step in failed[recent[failed]].tolist():
            leads.append(step - int(begun[begun <= step][-1]))
    return Tally(
        decisions=decisions,
        called=called,
        calls=calls,
        caught=_caught(events, recent_all / decisions),
        lead=float(np.median(leads)) if leads else None,
    )


def _caught(events: Sequence[bool], chance: float) -> Caught | None:
    return Caught(clopper_pearson(sum(events), len(events)), chance) if events else None


def within_budget(
    rows: Sequence[AttentionRow], tolerance: float, budget: Budget | None
) -> AttentionRow | None:
    """Return the highest threshold that the budget allows."""
    if budget is None:
        return None
    cost = "called" if budget.unit == "share" else "calls_per_hour"
    allowed = [
        row for row in rows if row.tolerance == tolerance and getattr(row, cost) <= budget.amount
    ]
    return allowed[-1] if allowed else None
