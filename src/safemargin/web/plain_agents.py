"""Agents that report by plain HTTP, one request a decision: for whatever has no WebSocket."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.web.connections import AGENT_RATE, Bucket
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import read_hello, read_introduction, read_json, read_report
from safemargin.web.fleet.state import Fleet

SILENCE = 10.0
"""Seconds without a request after which such an agent is lost."""
LONGEST_WAIT = 20.0
"""Seconds that a decision waits for a person's action before it is to be sent again."""

ASKS_AGAIN = 3.0
"""Seconds that such an agent may take to send a decision again that waits."""


class PlainAgent:
    """The way to one such agent: what it is to know waits for its next request."""

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
        """Keep what matters."""
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
        """Whether it waits for an answer, or has just done so and will ask again."""
        recent = time.monotonic() - self.heard_at < ASKS_AGAIN
        return self.stop is None and (self.waiting > 0 or recent)

    def close(self, why: str) -> None:
        """Tell it to stop, since there is nothing else to close."""
        self.send({"kind": "stop", "why": why})

    async def wait(self, place: tuple[int, int]) -> dict[str, Any]:
        """What it is told: a person's action, or that it may act by itself."""
        deadline = time.monotonic() + LONGEST_WAIT
        self.waiting += 1
        try:
            while self.taken and self.stop is None and time.monotonic() < deadline:
                if self.answer is not None and self.answer[:2] == place:
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
    """All agents that report so."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._known: dict[str, PlainAgent] = {}

    async def decide(self, name: str, body: bytes) -> dict[str, Any]:
        """One decision; where it waits, the answer comes once a person has acted."""
        message = read_json(body)
        report = read_report(message)
        known = self._find(name, message)
        if not known.bucket.take():
            raise InvalidInput(f"more than {AGENT_RATE:g} messages a second; report less often")
        known.heard_at = time.monotonic()
        if known.agent is not None:
            self.fleet.report(known.agent, report)
        if report.waits:
            return await known.wait((report.episode, report.step))
        return {"taken": known.taken, "answered": False, "stop": known.stop}

    def leave(self, name: str) -> None:
        """Say goodbye."""
        known = self._known.pop(name, None)
        if known is None or known.agent is None:
            raise InvalidInput(f"there is no agent {name!r} that reports by plain HTTP")
        self.fleet.depart(known.agent, known, "left")

    def sweep(self) -> None:
        """Those that have said nothing for too long are lost."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            if now - known.heard_at > SILENCE and not known.waiting and known.agent is not None:
                del self._known[name]
                why = f"nothing was heard of it for {SILENCE:g} s"
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
