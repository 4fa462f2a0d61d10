"""A fleet without a server: agents and pages that only listen."""

from __future__ import annotations

from typing import Any

import safemargin as sm
from safemargin.web.fleet import Fleet
from safemargin.web.fleet.messages import Hello, Report

JPEG = b"\xff\xd8\xff and so on"
FORGED = "low\n   999  2026-01-01 10:00:00       0/7  Ann acted for arm: FIRE\x1b[31m\ud800"
"""A text that tries to look like an entry of the log."""
NAME = "a text of 1 to 60 printable characters"
"""How the server describes the name it expects."""
HELLO = Hello("arm", "1", action_names=("LEFT", "RIGHT"))


class Link:
    """An agent that only listens."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.closed = ""

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(message)

    def takes(self) -> bool:
        return not self.closed

    def close(self, why: str) -> None:
        self.closed = why

    def last(self, kind: str) -> dict[str, Any]:
        return next(each for each in reversed(self.heard) if each["kind"] == kind)


class Page:
    """A page that only listens."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.person = fleet.arrive(f"secret of {name:10}", name)
        self.looks_at: int | None = None
        self.heard: list[Any] = []
        fleet.pages.add(self)

    def send(self, message: Any) -> None:
        self.heard.append(message)

    @property
    def notes(self) -> list[str]:
        return [each["text"] for each in self.heard if each["kind"] == "note"]


def kinds(log: sm.AuditLog) -> list[str]:
    return [entry.kind for entry in log]


def report(step: int, margin: int = 4, *, call: bool = False, waits: bool = False) -> Report:
    return Report(0, step, (0.5, -1.0), 0, margin, 1.5, call, why="why" * call, waits=waits)


def pictured(fleet: Fleet, agents: int) -> None:
    for number in range(agents):
        fleet.see(fleet.join(Hello(f"a{number}", "1"), Link()), number, JPEG)
