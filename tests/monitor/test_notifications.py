"""Webhooks and commands: what arrives, and that neither delays the monitor."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safemargin.errors import InvalidInput
from safemargin.monitor.decisions import Event
from safemargin.monitor.notifications import LONGEST_QUEUE, Command, Notifier, Webhook

CALL = Event("call", 3, 17, 1, 2.5, "margin 1, below 2")
RELEASE = Event("release", 3, 19, 4, 0.5, "margin 4")
DRIFT = Event("drift", -1, 20, None, None, "void")


@pytest.fixture
def server() -> Iterator[Any]:
    received: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers.get("X-Token"), json.loads(body)))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    http_server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{http_server.server_port}", received
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def test_a_webhook_gets_calls_and_drift(server: Any) -> None:
    url, received = server
    with Webhook(url, headers={"X-Token": "abc"}, extra={"text": "look"}) as hook:
        for event in (CALL, RELEASE, DRIFT):
            hook(event)
    assert received == [
        ("abc", {"text": "look", **CALL.to_dict()}),
        ("abc", {"text": "look", **DRIFT.to_dict()}),
    ]
    assert (hook.delivered, hook.failed, hook.dropped) == (2, 0, 0)
    hook(CALL)  # closed
    hook.close()
    assert len(received) == 2


def test_a_webhook_that_fails_is_counted_and_not_raised(server: Any) -> None:
    url, _ = server
    with Webhook(url + "/broken") as hook:
        hook(CALL)
    assert hook.failed == 1
    assert "500" in hook.last_error
    errors: list[str] = []
    with Webhook("http://127.0.0.1:9", timeout=2) as hook:
        hook.on_failure = lambda notifier: errors.append(notifier.last_error)
        hook(CALL)
        hook(DRIFT)
    assert hook.failed == 2
    assert hook.failing
    assert [each[:8] for each in errors] == ["URLError"] * 2


def test_what_failed_once_may_work_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))"
    with Command([sys.executable, "-c", code, str(gate)]) as command:
        command.on_failure = lambda notifier: gate.touch()
        command(CALL)
        command(CALL)
    assert (command.failed, command.delivered, command.failing) == (1, 1, False)


def test_a_command_reads_the_event(tmp_path: Path) -> None:
    target = tmp_path / "said.json"
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    with Command([sys.executable, "-c", code, str(target)], kinds=["release"]) as command:
        command(CALL)
        command(RELEASE)
    assert json.loads(target.read_text()) == RELEASE.to_dict()
    with Command([sys.executable, "-c", "raise SystemExit(3)"]) as command:
        command(CALL)
    assert command.failed == 1
    assert "exit status 3" in command.last_error
    with Command(["there-is-no-such-program"]) as command:
        command(CALL)
    assert command.last_error.startswith("FileNotFoundError")


class Slow(Notifier):
    def __init__(self, **options: Any) -> None:
        self.delivering, self.gate = threading.Event(), threading.Event()
        super().__init__(**options)

    def deliver(self, event: Event) -> None:
        self.delivering.set()
        self.gate.wait(30)


def test_a_flood_is_dropped_and_delays_nobody() -> None:
    slow = Slow()
    slow(CALL)
    assert slow.delivering.wait(30)  # the first event has left the queue
    for _ in range(LONGEST_QUEUE + 50):
        slow(CALL)
    assert (slow.delivered, slow.dropped) == (0, 50)  # no call waited for the first delivery
    slow.gate.set()
    slow.close()
    assert (slow.delivered, slow.dropped) == (LONGEST_QUEUE + 1, 50)


def test_a_rate_limit_spares_people_but_not_drift() -> None:
    slow = Slow(at_most_every=60.0)
    slow.gate.set()
    for event in (CALL, CALL, DRIFT, CALL):
        slow(event)
    slow.close()
    assert (slow.delivered, slow.dropped) == (2, 2)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"needs an http:// or https:// address, got 'file:///x'"
    ):
        Webhook("file:///x")
    for wrong in ("http://[x", "http://x:99999", "http://"):
        with pytest.raises(InvalidInput, match="needs an http:// or https:// address"):
            Webhook(wrong)
    with pytest.raises(InvalidInput, match="a command is a list of arguments"):
        Command("rm -rf")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="kind of event 'calls' is unknown; did you mean 'call'"):
        Command(["true"], kinds=["calls"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="timeout must be above 0 s"):
        Command(["true"], timeout=0)
