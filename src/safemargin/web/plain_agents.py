"""Agents without a WebSocket: they report by plain HTTP, one request per decision."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.monitor.steering import Steering
from safemargin.web.connections import AGENT_RATE, TOO_FAST, Bucket
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import Report, read_introduction, read_json, read_report
from safemargin.web.fleet.state import Fleet

SILENCE = 10.0
"""Seconds without a request after which such an agent is lost."""
LONGEST_WAIT = 20.0
"""Seconds that a decision waits for a person's action before the agent must send it again."""

ASKS_AGAIN = 3.0
"""Seconds that such an agent may take to repeat a decision that waits."""


class PlainAgent:
    """The connection to one such agent: messages wait for its next request."""

    agent: Agent

    def __init__(self) -> None:
        self.steering = Steering()
        self.heard_at = time.monotonic()
        self.waiting = 0
        self.bucket = Bucket(AGENT_RATE)
        self._changed = asyncio.Event()

    def send(self, message: dict[str, Any]) -> None:
        """Keep what the agent needs to know."""
        if message["kind"] == "taken":
            self.steering.receive({"kind": "free"})  # drop the action of whoever had it before
        self.steering.receive(message)
        self._changed.set()

    def takes(self) -> bool:
        """Whether it waits for an answer, or did a moment ago and will ask again."""
        recent = time.monotonic() - self.heard_at < ASKS_AGAIN
        return self.steering.stopped is None and (self.waiting > 0 or recent)

    def close(self, why: str) -> None:
        """Tell it to stop, as there is no connection to close."""
        self.send({"kind": "stop", "why": why})

    async def reply(self, report: Report) -> dict[str, Any]:
        """Return the reply to a decision: a person's action, or that it may act by itself.

        If the decision waits, return once a person has acted.
        """
        steering = self.steering
        if report.waits:
            self.waiting += 1
            try:
                async with asyncio.timeout(LONGEST_WAIT):
                    while steering.taken and steering.stopped is None:
                        answered, action = steering.wait(
                            report.episode, report.step, given_up=lambda: False, patience=0
                        )
                        if answered:
                            return {"taken": True, "answered": True, "action": action}
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError:
                pass
            finally:
                self.waiting -= 1
                self.heard_at = time.monotonic()
        return {"taken": steering.taken, "answered": False, "stop": steering.stopped}


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
        self.fleet.report(known.agent, report)
        return await known.reply(report)

    def leave(self, name: str) -> None:
        """Remove an agent that says goodbye."""
        known = self._known.pop(name, None)
        if known is None:
            raise InvalidInput(f"there is no agent {name!r} that reports by plain HTTP")
        self.fleet.depart(known.agent, known, "left")

    def sweep(self) -> None:
        """Mark agents that have been silent for too long as lost."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            if now - known.heard_at > SILENCE and not known.waiting:
                del self._known[name]
                why = f"it has been silent for {SILENCE:g} s"
                self.fleet.depart(known.agent, known, "lost", why)

    def _find(self, name: str, message: dict[str, Any]) -> PlainAgent:
        if name not in self._known:
            known = PlainAgent()
            known.agent = self.fleet.join(read_introduction(name, message), known)
            self._known[name] = known
        return self._known[name]
