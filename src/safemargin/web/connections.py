"""WebSocket connections with bounded queues and rates, and those of agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from safemargin.errors import InvalidInput, SafemarginError, StudyMismatch
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import read_hello, read_json, read_picture, read_report
from safemargin.web.fleet.state import Fleet

LONGEST_QUEUE = 256
"""The most messages that may wait for an agent or a page."""
AGENT_RATE = 200.0
"""Messages a second that one agent may send; twice as many in a burst."""
TOO_FAST = f"more than {AGENT_RATE:g} messages a second; report less often"
MOST_FAULTS = 10
"""Malformed messages after which a connection is closed."""
REFUSED = 1008
"""The WebSocket close code for a violated rule."""
TRY_LATER = 1013


class Bucket:
    """A token bucket: allows a steady rate and short bursts."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._left = 2 * rate
        self._at = time.monotonic()

    def take(self) -> bool:
        """Take one token; return whether there was one."""
        now = time.monotonic()
        self._left = min(2 * self.rate, self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Connection:
    """One WebSocket whose messages leave from a bounded queue, in order."""

    rate: float
    """Messages a second that it may send."""
    flood: str
    """The reason to close it beyond that rate."""
    deaf: tuple[int, str]
    """The code and the reason to close it with when it does not read its messages."""

    def __init__(self, websocket: WebSocket, fleet: Fleet) -> None:
        self.websocket = websocket
        self.fleet = fleet
        self._bucket = Bucket(self.rate)
        self.outgoing: asyncio.Queue[dict[str, Any] | bytes | None] = asyncio.Queue(LONGEST_QUEUE)
        self.ending: tuple[int, str] | None = None
        self._faults = 0

    def put(self, message: dict[str, Any] | bytes) -> bool:
        """Queue a message; return whether there was room."""
        try:
            self.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    def send(self, message: dict[str, Any] | bytes) -> None:
        """Queue a message; close the connection if it does not read."""
        if not self.put(message):
            self.end(*self.deaf)

    def end(self, code: int, why: str) -> None:
        """Send what is queued and the reason, then close."""
        if self.ending is None:
            self.ending = code, why
            if not self.put({"kind": "closed", "text": why}):
                while not self.outgoing.empty():  # nobody reads it: the queue is lost anyway
                    self.outgoing.get_nowait()
            with contextlib.suppress(asyncio.QueueFull):
                self.outgoing.put_nowait(None)

    def complain(self, error: SafemarginError) -> None:
        """Answer a malformed message with its error; too many of them end the connection."""
        self._faults += 1
        self.put({"kind": "error", "text": str(error)})
        if self._faults >= MOST_FAULTS:
            self.end(REFUSED, f"{MOST_FAULTS} messages could not be read; the last: {error}")

    async def deliver(self) -> None:
        """Send queued messages until the connection ends."""
        while (message := await self.outgoing.get()) is not None:
            if isinstance(message, bytes):
                await self.websocket.send_bytes(message)
            else:
                await self.websocket.send_text(json.dumps(message, separators=(",", ":")))
        code, why = self.ending or (1000, "")
        # A close frame holds 123 bytes of reason.
        await self.websocket.close(code, why.encode()[:120].decode(errors="ignore"))

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        sender, reader = asyncio.create_task(self.deliver()), asyncio.create_task(self.listen())
        for task in (sender, reader):
            task.add_done_callback(_report_bugs)
        try:
            await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
            if self.ending is not None and not sender.done():  # let the reason out
                await asyncio.wait({sender}, timeout=2)
        finally:
            sender.cancel()
            reader.cancel()
            self.gone()

    async def listen(self) -> None:
        """Receive messages until the connection ends or sends too many."""
        while self.ending is None:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if not self._bucket.take():
                self.end(REFUSED, self.flood)
            else:
                self.receive(message)

    def receive(self, message: Message) -> None:
        """Act on one message of the WebSocket, which has a "text" or "bytes"."""
        raise NotImplementedError

    def gone(self) -> None:
        """Take note that the connection has ended."""
        raise NotImplementedError


def _report_bugs(task: asyncio.Task[None]) -> None:
    """Report any error but a broken connection, which may happen at any time."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, WebSocketDisconnect | RuntimeError | OSError):
        context = {"message": "a connection of the fleet failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


class AgentConnection(Connection):
    """A remote agent: first a hello, then decisions and pictures."""

    rate, flood = AGENT_RATE, TOO_FAST
    deaf = TRY_LATER, "the agent does not read its messages"
    agent: Agent | None = None

    def takes(self) -> bool:
        """Whether the agent can receive a message now."""
        connected = self.websocket.client_state is WebSocketState.CONNECTED
        return connected and self.ending is None and not self.outgoing.full()

    def close(self, why: str) -> None:
        """End the connection."""
        self.end(1001, why)

    def gone(self) -> None:
        if self.agent is not None:  # no matter if it has left already
            why = self.ending[1] if self.ending else "its connection broke"
            self.fleet.depart(self.agent, self, "lost", why)

    def receive(self, message: Message) -> None:
        try:
            if message.get("text") is not None:
                self._receive_json(read_json(message["text"]))
            else:
                step, picture = read_picture(message["bytes"])
                if self.agent is None:
                    raise InvalidInput("the first message must be a hello")
                self.fleet.see(self.agent, step, picture)
        except (InvalidInput, StudyMismatch) as error:
            if self.agent is None or isinstance(error, StudyMismatch):
                self.end(REFUSED, str(error))
            else:
                self.complain(error)

    def _receive_json(self, message: dict[str, Any]) -> None:
        if self.agent is None:
            self.agent = self.fleet.join(read_hello(message), self)
            return
        kind = message.get("kind")
        if kind == "decision":
            self.fleet.report(self.agent, read_report(message))
        elif kind == "about":
            self.fleet.introduce(self.agent, read_hello({**message, "kind": "hello"}))
        elif kind == "ended":
            self.fleet.end_episode(self.agent)
        elif kind == "left":
            self.fleet.depart(self.agent, self, "left")
            self.end(1000, "goodbye")
        elif kind != "beat":
            raise InvalidInput(f"the kind of message {kind!r:.40} is unknown")
