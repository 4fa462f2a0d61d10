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
"""How many decisions of each agent a page gets when it opens."""

STOP_DUE = "; it is to stop as soon as it can be reached"

SHOWN = (
    "index", "name", "status", "dismissed", "held_since", "waiting", "calling", "called_since",
    "calls", "cause", "seen_by", "snoozed_until",
    "human_actions", "why", "void", "margin", "proxy", "actions", "heard_at",
)  # fmt: skip
"""Attributes that pages get as they are."""


class Link(Protocol):
    """The connection to an agent."""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the agent without waiting."""

    def takes(self) -> bool:
        """Whether the agent can receive a message now."""

    def close(self, why: str) -> None:
        """End the connection."""


@dataclass(eq=False, slots=True)
class Agent:
    """One agent: what it reported last, and who has it."""

    hello: Hello
    index: int = 0
    """Its number in the fleet."""
    link: Link | None = None
    status: Status = "live"
    reason: str = ""
    """Why it is not live."""
    dismissed: bool = False
    """It is gone, and hidden from pages until it comes back."""
    holder: Person | None = None
    """Who has taken it over."""
    held_since: float = 0.0
    stop_due: str = ""
    """Why it is to stop, until it can be reached."""
    stopped: str = ""
    """Why it was stopped."""
    waiting: bool = False
    """A person has it, and it waits for their action."""
    unconfirmed: bool = False
    """A person's action was sent, and the agent has not reported since."""
    report: Report | None = None
    margin: int = 0
    proxy: float | None = None
    calling: bool = False
    called_since: float = 0.0
    cause: str = ""
    """Why the open call began: margin, look or stuck."""
    seen_by: str = ""
    """Who has acknowledged the open call."""
    snoozed_until: float = 0.0
    """It does not call before this."""
    pictured_call: float = 0.0
    """When the last call with a picture in the log began."""
    why: str = ""
    void: bool = False
    calls: int = 0
    human_actions: int = 0
    actions: int = 0
    """How many discrete actions it has; 0 while that is not known."""
    picture: bytes | None = None
    picture_step: int = 0
    picture_every: float | None = None
    paced: bool = False
    heard_at: float = field(default_factory=time.time)
    monitor: Monitor | None = None
    track: Track = field(default_factory=Track)

    @property
    def name(self) -> str:
        """The name that people know it by."""
        return self.hello.name

    @property
    def finite_scores(self) -> list[float | None] | None:
        """Its last scores, with None for those that are not finite."""
        scores = None if self.report is None else self.report.scores
        return None if scores is None else [v if v - v == 0 else None for v in scores]

    def tell(self, message: dict[str, Any]) -> None:
        """Send the agent a message, if it is connected."""
        if self.link is not None:
            self.link.send(message)

    def action_name(self, action: Any) -> str | None:
        """Return the name of an action, if it has one."""
        index = action - self.hello.first_action if isinstance(action, int) else -1
        names = self.hello.action_names
        return names[index] if 0 <= index < len(names) else None

    def to_dict(self, *, trend: bool = False) -> dict[str, Any]:
        """Return its state for a page; with `trend`, also its last decisions."""
        hello, report = self.hello, self.report
        state: dict[str, Any] = {name: getattr(self, name) for name in SHOWN} | {
            "reason": self.reason + (STOP_DUE if self.stop_due else ""),
            "control": None if self.holder is None else self.holder.name,
            "episode": 0 if report is None else report.episode,
            "step": None if report is None else report.step,
            "action_names": list(hello.action_names),
            "first_action": hello.first_action,
            "dimensions": hello.dimensions,
            "pictured": self.picture is not None,
        }
        if trend:
            state["trend"] = self.track.last(TREND)
        return state

    def seen(self) -> dict[str, Any]:
        """Return its last decision for a page that looks at it."""
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
        """Return its picture for a page: 2 bytes of index, 4 of step, then the file."""
        head = self.index.to_bytes(2, "big") + self.picture_step.to_bytes(4, "big")
        return head + (self.picture or b"")
