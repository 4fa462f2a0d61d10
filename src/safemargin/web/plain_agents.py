"""Agents without a WebSocket: they report by plain HTTP, one request per decision."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.web.connections import AGENT_RATE, TOO_FAST, Bucket
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import read_hello, read_introduction, read_json, read_report
from safemargin.web.fleet.state import Fleet

SILENCE = 10.0
"""Seconds without a request after which such an agent is lost."""
LONGEST_WAIT = 20.0
"""Seconds that a decision waits for a person's action before the agent must send it again."""

ASKS_AGAIN = 3.0
"""Seconds that such an agent may take to repeat a decision that waits."""


class PlainAgent:
    """The connection to one such agent: messages wait for its next request."""

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self.taken = False
        self.stop: str | None = None
        self.answer: tuple[int, int, Any] | None = None  # episode, step, action
        self.heard_at = time.monotonic()
        self.waiting = 0
        self.bucket = Bucket(AGENT_RATE)
        self._changed = asyncio.Event()

    def send(self, message: dict[str, Any]) -> None:
        """Keep what the agent needs to know."""
        kind = message["kind"]
        if kind in ("taken", "free"):
            self.taken = kind == "taken"
            self.answer = None
        elif kind == "action":
            self.answer = message["episode"], message["step"], message["action"]
        elif kind == "stop":
            self.stop = message["why"]
        self._changed.set()

    def takes(self) -> bool:
        """Whether it waits for an answer, or did a moment ago and will ask again."""
        recent = time.monotonic() - self.heard_at < ASKS_AGAIN
        return self.stop is None and (self.waiting > 0 or recent)

    def close(self, why: str) -> None:
        """Tell it to stop, as there is no connection to close."""
        self.send({"kind": "stop", "why": why})

    async def wait(self, decision: tuple[int, int]) -> dict[str, Any]:
        """Return the reply to a decision: a person's action, or that it may act by itself."""
        deadline = time.monotonic() + LONGEST_WAIT
        self.waiting += 1
        try:
            while self.taken and self.stop is None and time.monotonic() < deadline:
                if self.answer is not None and self.answer[:2] == decision:
                    action, self.answer = self.answer[2], None
                    return {"taken": True, "answered": True, "action": action}
                self._changed.clear()
                left = max(0.0, deadline - time.monotonic())
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    break
        finally:
            self.waiting -= 1
            self.heard_at = time.monotonic()
        return {"taken": self.taken, "answered": False, "stop": self.stop}


class PlainAgents:
    """All agents that report by plain HTTP."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._known: dict[str, PlainAgent] = {}

    async def decide(self, name: str, body: bytes) -> dict[str, Any]:
        """Take in one decision; if it waits, return once a person has acted."""
        message = read_json(body)
        report = read_report(message)
        known = self._find(name, message)
        if not known.bucket.take():
            raise InvalidInput(TOO_FAST)
        known.heard_at = time.monotonic()
        if known.agent is not None:
            self.fleet.report(known.agent, report)
        if report.waits:
            return await known.wait((report.episode, report.step))
        return {"taken": known.taken, "answered": False, "stop": known.stop}

    def leave(self, name: str) -> None:
        """Remove an agent that says goodbye."""
        known = self._known.pop(name, None)
        if known is None or known.agent is None:
            raise InvalidInput(f"there is no agent {name!r} that reports by plain HTTP")
        self.fleet.depart(known.agent, known, "left")

    def sweep(self) -> None:
        """Mark agents that have been silent for too long as lost."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            if now - known.heard_at > SILENCE and not known.waiting and known.agent is not None:
                del self._known[name]
                why = f"it has been silent for {SILENCE:g} s"
                self.fleet.depart(known.agent, known, "lost", why)

    def _find(self, name: str, message: dict[str, Any]) -> PlainAgent:
        known = self._known.get(name)
        if known is None:
            about = read_introduction(message).about
            fixed = {"kind": "hello", "name": name, "instance": secrets.token_hex(8)}
            hello = read_hello({**about, **fixed})
            known = PlainAgent()
            known.agent = self.fleet.join(hello, known)
            self._known[name] = known
        return known
