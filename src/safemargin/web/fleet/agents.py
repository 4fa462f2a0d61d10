"""One agent as the server knows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from safemargin.monitor.monitor import Monitor
from safemargin.web.fleet.messages import Hello, Report
from safemargin.web.fleet.people import Person
from safemargin.web.fleet.track import Track

Status = Literal["live", "lost", "left", "died"]

TREND = 120
"""Decisions that a page is sent of each agent when it opens."""

STOP_DUE = "; it is to stop as soon as it can be reached"


class Link(Protocol):
    """The way to an agent."""

    def send(self, message: dict[str, Any]) -> None:
        """Tell the agent; never waits."""

    def takes(self) -> bool:
        """Whether the agent can be told something now."""

    def close(self, why: str) -> None:
        """End the connection."""


@dataclass(eq=False, slots=True)
class Agent:
    """One agent: what it said last, and who has it."""

    index: int
    hello: Hello
    link: Link | None = None
    status: Status = "live"
    reason: str = ""
    """Why it is not live."""
    dismissed: bool = False
    """It is gone, and pages do not show it until it comes back."""
    control: Person | None = None
    held_since: float = 0.0
    stop_due: str = ""
    """Why it is to stop, as long as it could not be told."""
    stopped: str = ""
    """Why it was told to stop."""
    waiting: bool = False
    """A person has it, and it waits for their action."""
    unconfirmed: bool = False
    """A person's action was sent, and nothing was heard of the agent since."""
    report: Report | None = None
    margin: int = 0
    proxy: float | None = None
    calling: bool = False
    called_since: float = 0.0
    pictured_call: float = 0.0
    """When the last call with a picture in the log began."""
    why: str = ""
    void: bool = False
    calls: int = 0
    human_actions: int = 0
    actions: int = 0
    """How many discrete ones there are; 0 as long as that is not known."""
    picture: bytes | None = None
    picture_step: int = 0
    picture_every: float | None = None
    paced: bool = False
    heard_at: float = field(default_factory=time.time)
    monitor: Monitor | None = None
    track: Track = field(default_factory=Track)

    @property
    def name(self) -> str:
        """What people call it."""
        return self.hello.name

    @property
    def finite_scores(self) -> list[float | None] | None:
        """Its last scores; None for what JSON cannot say."""
        scores = None if self.report is None else self.report.scores
        return None if scores is None else [v if v - v == 0 else None for v in scores]

    def action_name(self, action: Any) -> str | None:
        """What an action is called."""
        place = action - self.hello.first_action if isinstance(action, int) else -1
        names = self.hello.action_names
        return names[place] if 0 <= place < len(names) else None

    def to_dict(self, *, trend: bool = False) -> dict[str, Any]:
        """What a page is told of it."""
        hello, report = self.hello, self.report
        told: dict[str, Any] = {
            "index": self.index,
            "name": hello.name,
            "status": self.status,
            "reason": self.reason + (STOP_DUE if self.stop_due else ""),
            "dismissed": self.dismissed,
            "control": None if self.control is None else self.control.name,
            "held_since": self.held_since,
            "waiting": self.waiting,
            "calling": self.calling,
            "called_since": self.called_since,
            "calls": self.calls,
            "human_actions": self.human_actions,
            "why": self.why,
            "void": self.void,
            "margin": self.margin,
            "proxy": self.proxy,
            "episode": 0 if report is None else report.episode,
            "step": None if report is None else report.step,
            "action_names": list(hello.action_names),
            "actions": self.actions,
            "first_action": hello.first_action,
            "dimensions": hello.dimensions,
            "on_lost": hello.on_lost,
            "heard_at": self.heard_at,
            "pictured": self.picture is not None,
        }
        if trend:
            told["trend"] = self.track.last(TREND)
        return told

    def seen(self) -> dict[str, Any]:
        """What a person who looks at it is told with each decision."""
        report = self.report
        if report is None:
            return {}
        return {
            "index": self.index,
            "episode": report.episode,
            "step": report.step,
            "scores": self.finite_scores,
            "proposed": report.proposed,
            "why": self.why,
            "waiting": self.waiting,
        }

    def picture_message(self) -> bytes:
        """Its picture for a page: 2 bytes of the index, 4 of the step, the file."""
        head = self.index.to_bytes(2, "big") + self.picture_step.to_bytes(4, "big")
        return head + (self.picture or b"")
