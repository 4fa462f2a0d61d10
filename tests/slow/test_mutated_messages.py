"""Messages to the fleet page that were damaged at random are taken in, or answered in one line."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from helpers.fleet import JPEG
from helpers.fleet_client import act
from helpers.margins import margins
from helpers.mutations import CODE, PROGRAMS, Guard, mutate_bytes, mutate_json
from starlette.websockets import WebSocketState

import safemargin as sm
from safemargin.errors import SafemarginError
from safemargin.web.connections import AgentConnection, Connection
from safemargin.web.fleet import Fleet
from safemargin.web.fleet_app import publish
from safemargin.web.page_connection import PageConnection
from safemargin.web.plain_agents import PlainAgents

pytestmark = pytest.mark.slow

SLOWEST = 5.0
"""Seconds that one message may take at most: far more than any takes, far less than a hang."""
NAMES = ["arm", "b", "a third one"]
SCORES = {"scores": [0.5, None, -1.0], "proposed": 1}

FROM_AGENTS: list[dict[str, Any]] = [
    {"kind": "hello", "name": "arm", "instance": "1", "action_names": ["LEFT", "RIGHT"],
     "first_action": 0, "dimensions": 0, "policy": "sha256:abc", "on_lost": "hold"},
    {"kind": "decision", "episode": 1, "step": 7, "margin": 2, "proxy": 1.5, "call": True,
     "outside": False, "muted": False, "void": False, "why": "low", "waits": True, **SCORES},
    *({"kind": "decision", "episode": 1, "step": step, **SCORES} for step in (8, 9, 10)),
    {"kind": "about", "name": "arm", "action_names": ["A", "B", "C"], "first_action": 1},
    {"kind": "ended"},
    {"kind": "beat"},
    {"kind": "left"},
]  # fmt: skip
FROM_PAGES: list[dict[str, Any]] = [
    {"do": "hello", "secret": "the secret of Ann", "name": "Ann"},
    {"do": "look", "agent": 0},
    {"do": "name", "name": "Anna"},
    {"do": "take", "agent": 0, "force": True},
    act(7, episode=1),
    {"do": "give", "agent": 0},
    {"do": "dismiss", "agent": 0},
]
BY_HTTP = {**FROM_AGENTS[1], "waits": False, "about": FROM_AGENTS[0]}


def damaged(message: dict[str, Any], pick: random.Random) -> str:
    """Return the message as it is (two in five), or after a few changes to values or letters."""
    if pick.random() < 0.4:
        return json.dumps(message)
    if pick.random() < 0.2:
        return mutate_bytes(json.dumps(message).encode(), pick).decode(errors="replace")
    changed: Any = copy.deepcopy(message)
    for _ in range(pick.choice([1, 1, 2, 3])):
        changed = mutate_json(changed, pick)
    return json.dumps(changed)


class Wires:
    """Agents and pages connected to one fleet, each anew when its connection was closed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.plain = fleet, PlainAgents(fleet)
        self.agents: dict[str, AgentConnection] = {}
        self.pages: list[PageConnection] = []
        self.refused = 0
        socket: Any = SimpleNamespace(client_state=WebSocketState.CONNECTED)
        self._agent: Callable[[], AgentConnection] = lambda: AgentConnection(socket, fleet)
        self._page: Callable[[], PageConnection] = lambda: PageConnection(socket, fleet)

    async def send(self, pick: random.Random) -> None:
        """Send one message of any kind."""
        kind = pick.choice(["agent", "agent", "page", "page", "picture", "http"])
        if kind == "page":
            self._from_a_page(pick)
        elif kind == "http":
            body = damaged({**BY_HTTP, "episode": pick.randrange(9)}, pick).encode()
            try:
                json.dumps(await self.plain.decide(pick.choice(["plain", "\x1b[31m", ""]), body))
            except SafemarginError as error:
                self._one_line(str(error))
        else:
            self._from_an_agent(pick, picture=kind == "picture")
        publish(self.fleet)

    def _from_an_agent(self, pick: random.Random, *, picture: bool) -> None:
        name = pick.choice(NAMES)
        one = self.agents.get(name)
        if one is None:
            one = self.agents[name] = self._agent()
            if pick.random() < 0.8:
                one.receive({"type": "", "text": json.dumps({**FROM_AGENTS[0], "name": name})})
        if picture:
            one.receive({"type": "", "bytes": mutate_bytes(b"P\0\0\0\1" + JPEG, pick)})
        else:
            one.receive({"type": "", "text": damaged(pick.choice(FROM_AGENTS), pick)})
        if self._drained(one):
            del self.agents[name]

    def _from_a_page(self, pick: random.Random) -> None:
        while len(self.pages) < 2:
            self.pages.append(self._page())
            self.pages[-1].receive({"type": "", "text": json.dumps(FROM_PAGES[0])})
        page = pick.choice(self.pages)
        message = {**pick.choice(FROM_PAGES)}
        if "beat" in message:
            message["beat"] = time.monotonic()
        if "agent" in message and self.fleet.agents:
            message["agent"] = pick.randrange(len(self.fleet.agents))
        page.receive({"type": "", "text": damaged(message, pick)})
        if self._drained(page):
            self.pages.remove(page)

    def _drained(self, one: Connection) -> bool:
        """Read what was answered, as JSON that browsers take; return whether it has ended."""
        while not one.outgoing.empty():
            answer = one.outgoing.get_nowait()
            if isinstance(answer, dict):
                json.dumps(answer, allow_nan=False).encode()
                if answer["kind"] == "error":
                    self._one_line(answer["text"])
        if one.ending is not None:
            self._one_line(one.ending[1])
            one.gone()
        return one.ending is not None

    def _one_line(self, text: str) -> None:
        self.refused += 1
        assert text.isprintable(), f"more than a line: {text!r}"


def test_damage_is_one_sentence(whole: bool, tmp_path: Path) -> None:
    guard, wrong = Guard(), []
    count = 10_000 if whole else 1_500

    def monitor() -> sm.Monitor:
        return sm.Monitor(
            margins(policy={"kind": "q", "identity": "sha256:abc"}), tolerance=0.7, seed=0
        )

    async def run(fleet: Fleet, first: int, last: int) -> int:
        wires = Wires(fleet)
        for number in range(first, last):
            pick, began = random.Random(number), time.perf_counter()
            try:
                await wires.send(pick)
            except Exception:  # noqa: BLE001
                wrong.append(f"{number}: {traceback.format_exc()[-600:]}")
            if number % 50 == 0:
                json.dumps(fleet.snapshot(), allow_nan=False).encode()
            if (seconds := time.perf_counter() - began) > SLOWEST:
                wrong.append(f"{number}: took {seconds:.1f} s")
        return wires.refused

    path = tmp_path / "watch.db"
    with sm.AuditLog(path, write=True) as log, np.errstate(all="raise"):
        fleet = Fleet(log, make_monitor=monitor, grace=0.0)
        asyncio.run(run(fleet, 0, 200))  # load whatever is loaded when first used
        with guard.watching(*CODE, *PROGRAMS):
            refused = asyncio.run(run(fleet, 200, count))
        fleet.close()
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong[:20])
    assert not guard.seen, "\n".join(guard.seen[:20])
    assert refused > 0.1 * count
    assert fleet.decisions > 0.02 * count, fleet.decisions
    with sm.AuditLog(path) as log:
        assert log.check() > 0
        for entry in log:
            assert entry.text.isprintable()
