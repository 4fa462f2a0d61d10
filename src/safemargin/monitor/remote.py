"""An agent that runs elsewhere: it reports to a watched fleet, and obeys whoever takes it over.

Nothing in the control loop waits for the network: a thread sends the messages, and an agent that
nobody has taken over acts at once. Whatever happens to the server or the network, the agent notices
within `lost_after` seconds and does what `on_lost` says until the server is back.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from safemargin.core.plain import finite_or_none
from safemargin.errors import InvalidInput, MissingExtra, OverseerLost
from safemargin.monitor.decisions import Decision
from safemargin.monitor.notifications import is_address
from safemargin.monitor.steering import LOOK_AGAIN, OnLost, Steering, check_on_lost

LONGEST_QUEUE = 512
"""Messages waiting to be sent; when full, the oldest is dropped."""
FASTEST_TRY, SLOWEST_TRY = 0.2, 5.0
"""Seconds between attempts to connect."""
REPEAT = 1.0
"""Seconds after which a waiting decision is sent again, in case the server has lost it."""


class RemoteOverseer(contextlib.AbstractContextManager["RemoteOverseer"]):
    """Reports to `safemargin watch --remote`, and takes a person's actions once they take over.

    Use it as the overseer of `sm.Overseen`, or call `decide` in your own loop. It needs the
    library websockets, which safemargin[web] installs.
    """

    sees_all = True
    """`Overseen` asks it at every decision, not only during calls."""

    def __init__(
        self,
        address: str,
        *,
        name: str,
        token: str | None = None,
        on_lost: OnLost = "go-on",
        lost_after: float = 3.0,
        hold_action: Any = None,
        patience: float | None = None,
        wait: float = 0.0,
        action_names: Sequence[str] = (),
        dimensions: int = 0,
        first_action: int = 0,
        policy: Any = None,
        environment: str | None = None,
    ) -> None:
        """`address`: http://host:port of the server. `token`: default SAFEMARGIN_TOKEN.

        `on_lost`: what to do after `lost_after` seconds without a message from the server:
        continue alone ("go-on"), hold (return `hold_action`, or wait if that is None) or stop
        (raise OverseerLost). `patience`: seconds to wait for the action of a person who has taken
        over before the agent acts by itself; None: no limit. `wait`: seconds that a call waits for
        somebody to take over. `dimensions`: of continuous actions. `policy`: the policy or its
        identity, which the server compares with its margins.

        Raises InvalidInput where the server refuses the agent. A server that is away is not an
        error; if it refuses the agent later, `last_error` says why, and the agent tries again.
        """
        if not is_address(address, ("http", "https", "ws", "wss")):
            raise InvalidInput(f"the server's address must be like http://host:8718, got {address}")
        parts = urlsplit(address)
        if not lost_after > 0 or (patience is not None and not patience >= 0) or not wait >= 0:
            raise InvalidInput("lost_after must be above 0 s, patience and wait at least 0 s")
        secure = parts.scheme in ("https", "wss")
        self._address = f"{'wss' if secure else 'ws'}://{parts.netloc}/agents"
        self._token = token if token is not None else os.environ.get("SAFEMARGIN_TOKEN", "")
        self.name = name
        self.on_lost = check_on_lost(on_lost)
        self.lost_after = lost_after
        self.hold_action = hold_action
        self.patience = patience
        self.wait = wait
        self.sent = 0
        """Messages handed to the network."""
        self.dropped = 0
        """Messages dropped while nothing could be sent."""
        self.acknowledged = 0
        """Decisions that the server has confirmed."""
        self.last_error = ""
        """The last error of the server or the network."""
        self.steering = Steering()
        self.reward: float | None = None
        """What the decision before brought; `Overseen` sets it."""
        self._hello = {
            "kind": "hello",
            "name": name,
            "instance": secrets.token_hex(8),
            "action_names": list(action_names),
            "dimensions": dimensions,
            "first_action": first_action,
            "policy": policy if isinstance(policy, str) else getattr(policy, "identity", None),
            "environment": environment,
            "on_lost": on_lost,
        }
        self._outgoing: queue.Queue[str | bytes | None] = queue.Queue()
        self._heard_at = -math.inf
        self._refused: str | None = None
        self._answered = threading.Event()  # welcomed, refused, or not in time
        self._answering = threading.Lock()
        self._closing = threading.Event()
        self._connection: Any = None
        self._episode = self._step = 0
        self._pictured = -math.inf
        self._thread = threading.Thread(target=self._work, name=f"overseer {name}", daemon=True)
        self._start()

    def _start(self) -> None:
        """Connect, and wait for the server's answer for `lost_after` seconds at most."""
        try:
            import websockets.sync.client  # noqa: F401
        except ImportError as error:
            raise MissingExtra("a remote overseer", extra="web") from error
        self._thread.start()
        self._answered.wait(self.lost_after)
        with self._answering:  # from now on, no refusal is final
            self._answered.set()
        if self._refused is not None:
            self.close()
            raise InvalidInput(f"the server refuses {self.name!r}: {self._refused}")

    # -- the agent's side ----------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the server has been silent for `lost_after` seconds."""
        return time.monotonic() - self._heard_at > self.lost_after

    def __call__(self, observation: Any, scores: Any, decision: Decision, env: Any) -> Any:
        """Return the person's action, or None for the agent's own: the overseer of `Overseen`."""
        row = np.asarray(scores)
        discrete = hasattr(env.action_space, "n") and row.ndim == 1
        start = int(getattr(env.action_space, "start", 0))
        own = start + int(row.argmax()) if discrete else None
        if not self._hello["action_names"] and discrete:
            from safemargin.monitor.overseers import action_names

            names = action_names(env, int(env.action_space.n))
            named = [name or f"action {start + index}" for index, name in enumerate(names)]
            self._hello |= {"first_action": start, "action_names": named}
            self._put(json.dumps({**self._hello, "kind": "about"}))
        picture = None
        if self.wants_picture and getattr(env, "render_mode", None) == "rgb_array":
            picture = env.render()
        from safemargin.monitor.overseen import state_of

        return self._ask(own, scores, decision, picture, self.reward, f"{state_of(observation):x}")

    def decide(
        self,
        own: Any,
        *,
        scores: npt.ArrayLike | None = None,
        decision: Decision | None = None,
        picture: Any = None,
        reward: float | None = None,
        state: str = "",
    ) -> Any:
        """Return the action to take: the agent's `own`, or that of the person who has taken over.

        `decision` comes from a monitor on the agent's side; without one, the server's monitor
        judges the `scores`. `picture`: an array [height, width, 3] of bytes, or a JPEG or PNG
        file; it is sent only where `wants_picture`. `reward` is what the decision before brought;
        `state` is the same for equal states: they show whether the agent is stuck. Raises
        OverseerLost where the agent must stop.
        """
        action = self._ask(own, scores, decision, picture, reward, state)
        return own if action is None else action

    @property
    def wants_picture(self) -> bool:
        """Whether somebody is watching and the next picture is due."""
        every = self.steering.picture_every
        return every is not None and time.monotonic() - self._pictured >= every

    def end_episode(self) -> None:
        """Report that the episode is over."""
        self._put(json.dumps({"kind": "ended", "episode": self._episode}))
        self._episode += 1
        self._step = 0

    def close(self) -> None:
        """Tell the server that the agent leaves, and disconnect."""
        if self._closing.is_set():
            return
        self._put(json.dumps({"kind": "left"}))
        self._put(None)
        self._closing.set()
        self._thread.join(2.0)
        connection = self._connection
        if connection is not None:
            connection.close_socket()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(
        self,
        own: Any,
        scores: Any,
        decision: Decision | None,
        picture: Any,
        reward: float | None,
        state: str,
    ) -> Any:
        """Return a person's action, or None for the agent's own."""
        step, self._step = self._step, self._step + 1
        report: dict[str, Any] = {"kind": "decision", "episode": self._episode, "step": step}
        if scores is not None:
            report["scores"] = [finite_or_none(value) for value in np.ravel(scores).tolist()]
        if own is not None:
            given = np.asarray(own)
            report["proposed"] = given.item() if given.ndim == 0 else np.ravel(given).tolist()
        if decision is not None:
            report |= decision.report()
        if reward is not None:
            report |= {"reward": finite_or_none(float(reward)), "state": state}
        if picture is not None and self.wants_picture:
            from safemargin.monitor.pictures import as_picture

            self._pictured = time.monotonic()
            self._put(b"P" + step.to_bytes(4, "big") + as_picture(picture))
        reported = self.steering.taken
        self._put(json.dumps({**report, "waits": reported}))
        called = decision is not None and decision.began
        if self.steering.team_calls:  # the server decides who calls
            called = self.steering.take_call()
        if called and not reported and self.wait:
            self.steering.wait_for_person(self.wait, given_up=lambda: self.lost)
        while True:
            if self.steering.stopped is not None:
                raise OverseerLost(f"{self.name} must stop: {self.steering.stopped}")
            if self.lost or self._closing.is_set():
                if self.on_lost == "go-on":
                    return None
                if self._closing.is_set():
                    raise OverseerLost(f"{self.name} stops: its overseer was closed")
                if self.on_lost == "stop":
                    raise OverseerLost(
                        f"{self.name} stops: nothing was heard from {self._address} for "
                        f"{self.lost_after:g} s ({self.last_error or 'no answer'})"
                    )
                if self.hold_action is not None:
                    return self.hold_action
                time.sleep(LOOK_AGAIN)
                continue
            if not self.steering.taken:
                return None
            if not reported:
                self._put(json.dumps({**report, "waits": True}))
            reported = False
            answered, action = self.steering.wait(
                self._episode,
                step,
                given_up=lambda: self.lost or self._closing.is_set(),
                patience=REPEAT if self.patience is None else self.patience,
            )
            if answered:
                return action
            if self.patience is not None and self.steering.taken and not self.lost:
                return None

    def _put(self, message: str | bytes | None) -> None:
        if self._outgoing.qsize() >= LONGEST_QUEUE:
            with contextlib.suppress(queue.Empty):
                self._outgoing.get_nowait()
                self.dropped += 1
        self._outgoing.put(message)

    def _forget(self) -> None:
        """Drop what was queued while disconnected: it is of no use to anybody watching now."""
        while self._outgoing.qsize() > 1 and not self._closing.is_set():
            self._outgoing.get_nowait()
            self.dropped += 1

    # -- the network's side --------------------------------------------------------------------

    def _work(self) -> None:
        """Connect, and connect again whenever the connection is lost, until closed."""
        pause = FASTEST_TRY
        while not self._closing.is_set() and self._refused is None:
            began = time.monotonic()
            try:
                self._talk()
            except Exception as error:  # noqa: BLE001  whatever it is, it must not disturb the agent
                self._note(error)
            if time.monotonic() - began > SLOWEST_TRY:
                pause = FASTEST_TRY
            if self._refused is None:
                self._closing.wait(pause)
            pause = min(2 * pause, SLOWEST_TRY)

    def _talk(self) -> None:
        from websockets.sync.client import connect

        with connect(
            self._address,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            open_timeout=self.lost_after,
            close_timeout=0.5,
            compression=None,
            max_queue=64,
        ) as connection:
            self._forget()
            connection.send(json.dumps(self._hello))
            self._connection = connection
            reader = threading.Thread(target=self._listen, args=(connection,), daemon=True)
            reader.start()
            while reader.is_alive():
                try:
                    message = self._outgoing.get(timeout=0.2)
                except queue.Empty:
                    continue
                if message is None:
                    reader.join(1.0)  # the server closes the connection
                    return
                connection.send(message)
                self.sent += 1

    def _listen(self, connection: Any) -> None:
        welcome = False
        try:
            for text in connection:
                message = json.loads(text)
                kind = message.get("kind")
                welcome = welcome or kind == "welcome"
                if welcome:  # a server that refuses the agent counts as lost
                    self._heard_at = time.monotonic()
                if kind == "welcome":
                    # What the last connection said may be outdated; the server repeats what holds.
                    self.steering.team_calls = bool(message.get("team_calls"))
                    if not message.get("taken"):
                        self.steering.receive({"kind": "free"})
                    self._answered.set()
                elif kind == "beat":
                    self.acknowledged = int(message.get("decisions", 0))
                elif kind in ("error", "closed"):
                    self.last_error = str(message.get("text", ""))
                    if kind == "closed":
                        self._refuse()
                else:
                    self.steering.receive(message)
        except Exception as error:  # noqa: BLE001
            self._note(error)
        finally:
            self.steering.wake()

    def _note(self, error: Exception) -> None:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in (401, 403):
            said = bytes(response.body or b"").decode(errors="replace").strip()
            self.last_error = said or f"HTTP {response.status_code}"
            self._refuse()
        else:
            self.last_error = f"{type(error).__name__}: {error}"

    def _refuse(self) -> None:
        """Give up while the constructor waits; later, a name or token may be corrected."""
        with self._answering:
            if not self._answered.is_set():
                self._refused = self.last_error
                self._answered.set()
