"""An agent's side of being taken over: what it has heard, and waiting for a person's action."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from safemargin.errors import InvalidInput, did_you_mean

OnLost = Literal["go-on", "hold", "stop"]
"""What an agent does when whoever oversees it is lost: act by itself, wait, or end."""

LOOK_AGAIN = 0.05
"""Seconds between looks at whether somebody is still there."""


def check_on_lost(value: str) -> OnLost:
    """InvalidInput where it is none of the three."""
    if value not in get_args(OnLost):
        raise InvalidInput(f"on_lost={value!r} is unknown; {did_you_mean(value, get_args(OnLost))}")
    return value  # type: ignore[return-value]


class Steering:
    """What the server has told one agent. Messages come from one thread, questions from another."""

    def __init__(self) -> None:
        self.taken = False
        """Whether a person has the agent."""
        self.by = ""
        """Who."""
        self.stopped: str | None = None
        """Why the agent was told to stop."""
        self.picture_every: float | None = None
        """Seconds between pictures that somebody wants to see; None: nobody."""
        self._answer: tuple[int, int, Any] | None = None  # episode, step, action
        self._changed = threading.Condition()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take in one message of the server; an unknown one is passed over."""
        kind = message.get("kind")
        with self._changed:
            if kind == "taken":
                self.taken, self.by = True, str(message.get("by", ""))
            elif kind == "free":
                self.taken, self.by, self._answer = False, "", None
            elif kind == "action":
                self._answer = int(message["episode"]), int(message["step"]), message["action"]
            elif kind == "pictures":
                every = message.get("every")
                self.picture_every = None if every is None else float(every)
            elif kind == "stop":
                self.stopped = str(message.get("why", "it was told to stop"))
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a question that waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_person(self, seconds: float, *, given_up: Callable[[], bool]) -> bool:
        """Whether somebody takes the agent over within so many seconds."""
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
        """(True, the person's action); (False, None) once the agent is to act by itself.

        That is: it was handed back, told to stop, `given_up()`, or nobody acted for `patience`
        seconds.
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
