"""What is left of a budget of calls, and how often it allows one."""

from __future__ import annotations

from dataclasses import dataclass

from safemargin.core.budget import Budget
from safemargin.errors import InvalidInput

LEAST_SAVED, MOST_SAVED = 4.0, 10.0
"""A quarter of an hour's calls can be saved up, but at least and at most this many."""
PACE_MEMORY = 60.0
"""Seconds over which the number of decisions a second is averaged."""
PRICE_MEMORY = 10
"""Calls over which the number of decisions in one is averaged."""


def look_share(budget: Budget, looks: str | float | Budget | None) -> float:
    """Return which share of the budget random looks take (default: a tenth)."""
    if looks is None:
        return 0.1
    floor = Budget.parse(looks, what="the floor of random looks")
    if floor.amount and floor.unit != budget.unit:
        raise InvalidInput(
            f"the floor of random looks ({floor}) must have the unit of the budget ({budget})"
        )
    if floor.amount >= budget.amount:
        raise InvalidInput(
            f"a budget of {budget} cannot be kept: random looks alone take {floor}; raise the "
            "budget or lower the floor of looks"
        )
    return floor.amount / budget.amount


@dataclass(slots=True)
class Bank:
    """Saves up what the budget allows, for one team; time and decisions come from the caller.

    Random looks have a share of the budget of their own (`looks`), which calls cannot use up. Half
    of what can be saved is there at the start. From any moment on, the calls of T hours cost at
    most the budget of T hours and what can be saved.
    """

    budget: Budget
    looks: float
    """Share of the budget that random looks take."""
    call_seconds: float
    """How long a call is expected to be, until that is known."""
    saved: float = 0.0
    """Calls, or decisions during calls, that the budget still allows."""
    pace: float = 0.0
    """Decisions a second of all agents."""
    _per_call: float = 0.0
    """Decisions in a call, on average; 0: not known yet."""
    _decisions: int = 0
    """Decisions since the last review."""
    _empty: bool = True

    @property
    def per_call(self) -> float:
        """What a call costs: 1, or its decisions."""
        return 1.0 if self.budget.unit == "hour" else self._per_call

    @property
    def rate(self) -> float:
        """Calls a second that the budget allows, without random looks."""
        if self._empty:
            return 0.0
        own = self.budget.amount * (1 - self.looks)
        return own / 3600 if self.budget.unit == "hour" else own * self.pace / self._per_call

    @property
    def most(self) -> float:
        """How many calls can be saved up."""
        return min(max(self.rate * 900, LEAST_SAVED), MOST_SAVED)

    @property
    def filling(self) -> float:
        """How full it is, from 0 to 1."""
        return min(max(self.saved / (self.most * self.per_call), 0.0), 1.0)

    def allows(self) -> bool:
        """Whether it pays for a call."""
        return not self._empty and self.saved >= self.per_call

    def pass_time(self, seconds: float) -> None:
        """Add what the budget allows for this much time."""
        if self.budget.unit == "hour" and not self._empty:
            most = self.most
            self.saved = max(self.saved, min(self.saved + self.rate * seconds, most))

    def decide(self, *, called: bool) -> None:
        """Count a decision; `called`: during a call that is not a random look."""
        self._decisions += 1
        if self.budget.unit == "share" and not self._empty:
            self.saved += self.budget.amount * (1 - self.looks) - called

    def pay(self) -> None:
        """Pay for a call that begins; a share of decisions is paid as they come."""
        if self.budget.unit == "hour":
            self.saved -= 1

    def end_call(self, decisions: int) -> None:
        """Learn how long calls are."""
        self._per_call += (decisions - self._per_call) / PRICE_MEMORY

    def review(self, seconds: float, agents: int) -> None:
        """Learn how many decisions a second there are, from those since the last review."""
        pace, self._decisions = self._decisions / seconds, 0
        if self._empty:
            self.pace = pace
            self._per_call = max(1.0, self.call_seconds * pace / agents)
            self.saved, self._empty = self.most * self.per_call / 2, False
        else:
            self.pace += (pace - self.pace) * min(seconds / PACE_MEMORY, 1.0)
            self.saved = min(self.saved, self.most * self.per_call)
