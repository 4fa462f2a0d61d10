"""Notifications: a webhook to post to, or a command to run, when a monitor calls.

Both are listeners of a monitor and never delay it: events wait in a short queue for a thread that
delivers them. A failed delivery is counted and never raises an error in the control loop.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, get_args

from safemargin.errors import InvalidInput, did_you_mean
from safemargin.monitor.decisions import Event, Kind

DEFAULT_KINDS: tuple[Kind, ...] = ("call", "drift")
LONGEST_QUEUE = 100


class Notifier(contextlib.AbstractContextManager["Notifier"], ABC):
    """Delivers events from its own thread; a full queue drops new ones and counts them."""

    def __init__(
        self,
        *,
        kinds: Iterable[Kind] = DEFAULT_KINDS,
        timeout: float = 10.0,
        at_most_every: float = 0.0,
    ) -> None:
        """`at_most_every`: seconds between messages about calls; calls in between are dropped."""
        self.kinds = frozenset(kinds)
        for kind in self.kinds:
            if kind not in get_args(Kind):
                known = did_you_mean(str(kind), get_args(Kind))
                raise InvalidInput(f"the kind of event {kind!r} is unknown; {known}")
        if timeout <= 0 or at_most_every < 0:
            raise InvalidInput(
                f"timeout must be above 0 s and at_most_every at least 0 s, got {timeout} "
                f"and {at_most_every}"
            )
        self.timeout = timeout
        self.at_most_every = at_most_every
        self.delivered = 0
        self.failed = 0
        self.dropped = 0
        self.last_error = ""
        """The error of the last failed delivery."""
        self.failing = False
        """Whether the latest delivery failed."""
        self.on_failure: Callable[[Notifier], Any] = lambda notifier: None
        """Called after each failed delivery, from the notifier's thread."""
        self._queue: queue.Queue[Event | None] = queue.Queue(LONGEST_QUEUE)
        self._last = -float("inf")
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name=type(self).__name__)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event; returns at once."""
        if event.kind not in self.kinds or self._closed:
            return
        now = time.monotonic()
        if event.kind == "call" and now - self._last < self.at_most_every:
            self.dropped += 1
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1
            return
        if event.kind == "call":
            self._last = now

    def close(self, *, timeout: float = 30.0) -> None:
        """Deliver what is queued, then stop."""
        if not self._closed:
            self._closed = True
            deadline = time.monotonic() + timeout
            with contextlib.suppress(queue.Full):  # a daemon does not keep the program alive
                self._queue.put(None, timeout=timeout)
                self._thread.join(max(0.0, deadline - time.monotonic()))

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def deliver(self, event: Event) -> None:
        """Deliver one event, or raise."""

    def _work(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self.deliver(event)
                self.delivered += 1
                self.failing = False
            except Exception as error:  # noqa: BLE001  whatever it is, the agent continues
                self.failed += 1
                self.last_error = f"{type(error).__name__}: {error}"
                self.failing = True
                with contextlib.suppress(Exception):
                    self.on_failure(self)


def is_address(url: str, schemes: Collection[str]) -> bool:
    """Whether a URL has one of the schemes, a host and, if any, a valid port."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # e.g. half of an IPv6 address, or the port 99999
        return False


def post_json(
    url: str, body: Mapping[str, Any], *, timeout: float, headers: Mapping[str, str] | None = None
) -> None:
    """Post a JSON document to an address, or raise."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent, method="POST")
    with urllib.request.urlopen(request, timeout=timeout):
        pass


class Webhook(Notifier):
    """Posts each event as JSON to an address."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`extra` is added to every message, e.g. {"text": "the agent calls"} for a chat.

        The options are those of `Notifier`.
        """
        if not is_address(url, ("http", "https")):
            raise InvalidInput(f"a webhook needs an http:// or https:// address, got {url!r}")
        self.url = url
        self.headers = headers
        self.extra = dict(extra or {})
        super().__init__(**options)

    def deliver(self, event: Event) -> None:
        body = {**self.extra, **event.to_dict()}
        post_json(self.url, body, timeout=self.timeout, headers=self.headers)


class Command(Notifier):
    """Runs a command for each event, without a shell; standard input is the event as JSON."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        """The options are those of `Notifier`."""
        if isinstance(arguments, str) or not arguments:
            raise InvalidInput(
                f"a command is a list of arguments, e.g. ['notify-send', 'call'], got {arguments!r}"
            )
        self.arguments = [str(argument) for argument in arguments]
        super().__init__(**options)

    def deliver(self, event: Event) -> None:
        subprocess.run(
            self.arguments,
            input=json.dumps(event.to_dict()),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=self.timeout,
            check=True,
        )
