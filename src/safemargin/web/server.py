"""Serves a page on this machine and opens it in a browser."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What a server listens on to be reached from everywhere, and where this machine reaches it."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port; InvalidInput if the port is in use."""
    if not 0 <= port <= 65535:
        raise InvalidInput(f"a port is 0 (any free one) to 65535, got {port}")
    both = ":" in host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=64, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidInput(
                f"port {port} of {host} is in use, perhaps by another page of safemargin; stop it, "
                "or choose another port with --port (0: any free one)"
            ) from error
        raise InvalidInput(f"cannot listen on {host} port {port}: {error}") from error


def address_of(bound: socket.socket) -> str:
    """Return the address to open in a browser.

    Where the socket listens on all addresses of this machine, it is one that others can reach.
    """
    host, port = bound.getsockname()[:2]
    if host in EVERY_ADDRESS:
        host = _own_address(bound.family, otherwise=EVERY_ADDRESS[host])
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _own_address(family: socket.AddressFamily, otherwise: str) -> str:
    """Return the address with which this machine would reach others."""
    far = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # for documentation only
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((far, 9))  # looks for a route, and sends nothing
            found = str(asking.getsockname()[0])
    except OSError:
        return otherwise
    return otherwise if found.startswith("fe80:") else found  # browsers cannot open these


def serve(
    app: Callable[..., object],
    bound: socket.socket,
    *,
    browser: bool = False,
    started: Callable[[str], None] = lambda address: None,
    ending: Callable[[], None] = lambda: None,
    query: str = "",
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Answer requests until Ctrl-C.

    `ending` is called before the server waits for open requests, so that they can finish.
    `query` is appended to the address that a browser opens; `settings` go to uvicorn.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("a page", extra="web") from error
    address = address_of(bound)
    # Connections that browsers keep open must not delay the end.
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=1, **(settings or {})
    )

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending()
            await super().shutdown(sockets)

    server = Server(config)

    def end() -> None:
        server.should_exit = True

    with _ctrl_c_calls(end):
        started(address)
        if browser:  # connections wait in the socket's queue until the server is up
            threading.Thread(target=webbrowser.open, args=(address + query,), daemon=True).start()
        server.run(sockets=[bound])


@contextlib.contextmanager
def _ctrl_c_calls(end: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `end` at once, and raise KeyboardInterrupt only afterwards.

    While the server starts, an exception could be raised where Python ignores it, and the server
    would run on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        end()

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
