"""A real server of a fleet for tests, and a network between it and agents that can stall."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

TOKEN = "the token of the tests"


class Server:
    """`safemargin watch --remote` in a process of its own."""

    def __init__(
        self, folder: Path, *arguments: str, port: int = 0, stderr: IO[str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "safemargin", "watch", "--json", "--no-browser"]
        log = ["--log", str(folder / "watch.db"), "--port", str(port)]
        self.process = subprocess.Popen(
            [*command, *log, *(arguments or ["--remote"])],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "SAFEMARGIN_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["address"]
        """The link to the page, with people's token."""

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    def stall(self) -> None:
        """It stands still, and closes nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As kill -9 does."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=120)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.resume()
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=120)


@contextlib.contextmanager
def running(
    folder: Path, *arguments: str, port: int = 0, stderr: IO[str] | None = None
) -> Iterator[Server]:
    server = Server(folder, *arguments, port=port, stderr=stderr)
    try:
        yield server
    finally:
        server.stop()


class Person:
    """Somebody at a page, without a browser."""

    def __init__(self, address: str, name: str) -> None:
        from websockets.sync.client import connect

        self._stack = contextlib.ExitStack()
        address, _, token = address.partition("?token=")
        cookie = {"Cookie": f"safemargin_page_{urlsplit(address).port}={token}"}
        live = address.replace("http", "ws") + "live"
        self._socket = self._stack.enter_context(
            connect(
                live,
                additional_headers=cookie,
                max_size=None,
                open_timeout=60,
                close_timeout=0.2,
            )
        )
        self._entries: list[Any] = []
        self.say(do="hello", secret=f"the secret of {name}", name=name)
        self.fleet = self.hear("fleet")

    def say(self, **message: Any) -> None:
        """As a page does that has just heard of the server: its clock is this machine's."""
        self._socket.send(json.dumps({"beat": time.monotonic(), **message}))

    def hear(self, kind: str, wanted: Callable[[Any], bool] = lambda message: True) -> Any:
        """The next message of a kind that is as wanted."""
        while True:
            received = self._socket.recv(timeout=120)
            if isinstance(received, str):
                message = json.loads(received)
                if message["kind"] == kind and wanted(message):
                    return message

    def act(self, agent: int, action: int) -> None:
        """Answer the next decision that waits."""
        seen = self.hear("seen", lambda message: message.get("waiting"))
        place = {"episode": seen["episode"], "step": seen["step"]}
        self.say(do="act", agent=agent, **place, action=action)

    def entry(self, kind: str) -> Any:
        """Wait until the log says so."""
        while True:
            while self._entries:
                entry = self._entries.pop(0)
                if entry["kind"] == kind:
                    return entry
            self._entries = self.hear("entries")["entries"]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Network:
    """Carries bytes between agents and a server; can stall without closing anything."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.stalled = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closing:
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            while self.stalled:
                time.sleep(0.02)
            with socket.create_connection(("127.0.0.1", self.target)) as far:
                while not self._closing:
                    if self.stalled:
                        time.sleep(0.02)
                        continue
                    for ready in select.select([near, far], [], [], 0.05)[0]:
                        data = ready.recv(65536)
                        if not data:
                            return
                        (far if ready is near else near).sendall(data)

    def close(self) -> None:
        self._closing = True
        self._listener.close()


def wait_until(found: Callable[[], Any], what: str) -> Any:
    """Look again and again; fails after half a minute."""
    for _ in range(600):
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")
