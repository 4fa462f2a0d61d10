"""What to expect of a team's calls before anybody watches: how many, how long, whose time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from safemargin.core.budget import Budget
from safemargin.core.text import counted
from safemargin.margins.lookup import Margins
from safemargin.monitor.caller import Caller
from safemargin.monitor.calls import LOOK
from safemargin.monitor.decisions import Decision
from safemargin.validation.heldout import Share, clopper_pearson

FLOOD = 60.0
"""More calls an hour than this are a flood: one a minute."""
CROWD = 0.2
"""Somebody calls for more than this share of the time: too much to do anything else."""


@dataclass(frozen=True)
class Forecast:
    """What a team's calls will take."""

    calls: float | None
    """Calls an hour of all agents together; None where nothing says how long calls last."""
    length: float | None
    """Seconds of a call, on average."""
    attention: float
    """How many agents call at once, on average: the hours that calls take in an hour."""
    at_least: bool
    """The attention is a lower bound."""
    basis: str
    """What the forecast rests on."""

    @property
    def floods(self) -> bool:
        """Whether nobody could answer these calls."""
        return self.attention > CROWD or (self.calls is not None and self.calls > FLOOD)

    @property
    def text(self) -> str:
        """The forecast in one sentence."""
        attention = f"{100 * self.attention:,.3g} % of one person's time"
        if self.attention > 1:
            attention = f"{self.attention:,.1f} agents call at any moment"
        attention = f"at least {attention}" if self.at_least else attention
        if self.calls is None:
            return f"expect calls during {attention} ({self.basis})"
        lasting = "" if self.length is None else f" of {self.length:,.1f} s"
        number = f"{self.calls:,.0f}" if self.calls >= 10 else f"{self.calls:,.2g}"
        return f"expect about {number} calls an hour{lasting}, {attention} ({self.basis})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "floods": self.floods, "text": self.text}


def forecast_budget(caller: Caller, agents: int) -> Forecast:
    """Return what a budget takes, by itself: the calls that it allows, each as short as can be."""
    assert caller.budget is not None
    budget: Budget = caller.budget
    if budget.unit == "share":
        basis = f"the budget of {budget} for {counted(agents, 'agent')}"
        return Forecast(None, None, budget.amount * agents, False, basis)
    length = max(caller.length, caller.gap)
    length = (1 - caller.looks) * length + caller.looks * max(LOOK, caller.length)
    basis = f"the budget of {budget}; an agent that stays urgent calls for longer"
    return Forecast(budget.amount, length, budget.amount * length / 3600, True, basis)


def forecast_margins(
    margins: Margins, tolerance: float, call_at: int, agents: int
) -> Forecast | None:
    """Return what calling below a margin takes, from what the margins' agent met in its study.

    One decision of each episode is known, so it says how often a margin is low, not for how long.
    None where the margins do not hold these.
    """
    natural = margins.natural_proxies
    if natural is None:
        return None
    granted = margins.lookup(natural.values, tolerance).margin
    low = round(float((granted < call_at).mean()) * natural.count)
    share: Share = clopper_pearson(low, natural.count)
    basis = (
        f"{low} of {counted(natural.count, 'natural decision')} behind the margins lie below "
        f"margin {call_at}: {share.low:.1%} to {share.high:.1%} of all"
    )
    return Forecast(None, None, low / natural.count * agents, True, basis)


def forecast_rehearsal(
    plays: Sequence[Sequence[Decision]], caller: Caller, agents: int, rate: float
) -> Forecast:
    """Return what calling as a monitor did takes, from a few of one agent's episodes.

    `plays`: consecutive decisions, episode by episode. `caller`: one without a budget; it makes
    these calls as long as people need. `rate`: decisions a second of each agent.
    """
    calls = called = decided = 0
    for play in plays:
        for decision in play:
            call = caller.step(decision, decided / rate)
            calls += call.began
            called += call.on
            decided += 1
        caller.end_episode(0)
    seconds = decided / rate
    return Forecast(
        calls=agents * calls / seconds * 3600,
        length=called / calls / rate if calls else None,
        attention=agents * called / decided,
        at_least=False,
        basis=f"{counted(decided, 'decision')} rehearsed by one agent",
    )
