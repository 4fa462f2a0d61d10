"""A call, and what a caller knows of one agent and of random looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from safemargin.monitor.threshold import HIGHEST, LOWEST, Urgency

Cause = Literal["", "margin", "look", "stuck"]

LOOK = 10.0
"""Seconds that a random look lasts, if it is not acknowledged."""


class Call(NamedTuple):
    """What a caller says of one decision."""

    on: bool
    """Somebody should look."""
    began: bool
    """The call begins with this decision."""
    cause: Cause
    """margin: it is among the most urgent decisions; look: a random look; stuck: no progress."""
    why: str


QUIET = Call(False, False, "", "")


@dataclass(eq=False, slots=True)
class Line:
    """What the caller knows of one agent."""

    index: int
    heard: float
    """When it last decided, in the agents' time."""
    saved: float
    """Calls that its own share of the budget allows."""
    at: float
    """When that was reckoned, in the team's time."""
    lot: float
    slot_ends: float
    peak: Urgency = LOWEST
    """The largest value of the current slot."""
    high: bool = False
    """The last slot would have been a call, so that this one would belong to it."""
    call: Call = QUIET
    began: float = 0.0
    urgent: float = 0.0
    """When it was last as urgent as when the call began."""
    level: Urgency = HIGHEST
    """How urgent it must be for the call to continue."""
    decisions: int = 0
    """Decisions during the call."""
    acknowledged: bool = False
    quiet: bool = False
    """It is not to begin a call."""
    reported: bool = False
    """It was called because it is stuck, and still is."""
    look: bool = False
    """It is to be looked at when it decides next."""


@dataclass(eq=False, slots=True)
class Looks:
    """When random looks are due: one at a random moment of each equal part of the time."""

    uniform: Callable[[], float]
    passed: float = 0.0
    """How many parts have passed."""
    count: int = 0
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.uniform()

    def due(self, parts: float) -> bool:
        """Let time pass; return whether a look is due."""
        self.passed += parts
        if self.passed < self.at:
            return False
        self.count += 1
        self.at = self.count + self.uniform()
        return True
