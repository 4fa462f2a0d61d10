"""An agent's side of a takeover: the server's messages, and waiting for a person's action."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from safemargin.errors import InvalidInput, did_you_mean

OnLost = Literal["go-on", "hold", "stop"]
"""What an agent does when its overseer is lost: act by itself, wait, or stop."""

LOOK_AGAIN = 0.05
"""Seconds between checks whether somebody is still there."""


def check_on_lost(value: str) -> OnLost:
    """Return the value; InvalidInput where it is none of the three."""
    if value not in get_args(OnLost):
        raise InvalidInput(f"on_lost={value!r} is unknown; {did_you_mean(value, get_args(OnLost))}")
    return value  # type: ignore[return-value]


class Steering:
    """What the server wants of one agent. One thread receives messages, another one waits."""

    def __init__(self) -> None:
        self.taken = False
        """Whether a person has taken the agent over."""
        self.by = ""
        """The person's name."""
        self.stopped: str | None = None
        """Why the agent must stop; None while it need not."""
        self.picture_every: float | None = None
        """Seconds between pictures; None while nobody watches."""
        self.team_calls = False
        """Whether the server decides, for a whole team, which agents call."""
        self._called = False
        self._answer: tuple[int, int, Any] | None = None  # episode, step, action
        self._changed = threading.Condition()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take in one message of the server; unknown ones are ignored."""
        kind = message.get("kind")
        with self._changed:
            if kind == "taken":
                self.taken, self.by = True, str(message.get("by", ""))
            elif kind == "free":
                self.taken, self.by, self._answer = False, "", None
            elif kind == "called":
                self._called = True
            elif kind == "action":
                self._answer = int(message["episode"]), int(message["step"]), message["action"]
            elif kind == "pictures":
                every = message.get("every")
                self.picture_every = None if every is None else float(every)
            elif kind == "stop":
                self.stopped = str(message.get("why", "the server stopped it"))
            self._changed.notify_all()

    def take_call(self) -> bool:
        """Return whether the server has begun a call of the agent since this was last asked."""
        with self._changed:
            called, self._called = self._called, False
        return called

    def wake(self) -> None:
        """Make whoever waits check again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_person(self, seconds: float, *, given_up: Callable[[], bool]) -> bool:
        """Return whether somebody takes the agent over within this many seconds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self.taken and self.stopped is None and not given_up():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, LOOK_AGAIN))
            return self.taken

    def wait(
        self,
        episode: int,
        step: int,
        *,
        given_up: Callable[[], bool],
        patience: float | None = None,
    ) -> tuple[bool, Any]:
        """Return (True, the person's action), or (False, None) once the agent is to act by itself.

        That is once it is handed back or stopped, `given_up()` is true, or nobody has acted for
        `patience` seconds.
        """
        deadline = None if patience is None else time.monotonic() + patience
        with self._changed:
            while self.taken and self.stopped is None and not given_up():
                if self._answer is not None and self._answer[:2] == (episode, step):
                    action, self._answer = self._answer[2], None
                    return True, action
                if deadline is not None and time.monotonic() >= deadline:
                    break
                self._changed.wait(LOOK_AGAIN)
        return False, None
