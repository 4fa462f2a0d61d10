"""Agents and pages of a fleet's server that runs in the same process."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

ADDRESS = "http://127.0.0.1"
AGENTS, LIVE = "ws://127.0.0.1/agents", "ws://127.0.0.1/live"
TOKEN = "a token of these tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def hello(name: str = "arm") -> dict[str, Any]:
    return {"kind": "hello", "name": name, "instance": name, "action_names": ["LEFT", "RIGHT"]}


def until(socket: Any, kind: str) -> dict[str, Any]:
    """The next message of a kind; others are passed over."""
    while True:
        message = socket.receive()
        if message["type"] == "websocket.close":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        if message.get("text"):
            told: dict[str, Any] = json.loads(message["text"])
            if told["kind"] == kind:
                return told


@contextlib.contextmanager
def opened_page(client: TestClient, name: str) -> Iterator[Any]:
    with client.websocket_connect(LIVE) as socket:
        socket.send_json({"do": "hello", "secret": f"the secret of {name}", "name": name})
        yield socket


def act(step: Any, **changes: Any) -> dict[str, Any]:
    """What a page sends that has just heard of the server."""
    place = {"agent": 0, "episode": 0, "step": step, "action": 1}
    return {"do": "act", **place, "beat": time.monotonic(), **changes}
