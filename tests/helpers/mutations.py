"""Random damage to JSON and to bytes, and a guard that sees whether anything was run."""

from __future__ import annotations

import base64
import contextlib
import copy
import encodings.unicode_escape  # noqa: F401  else loaded when a text is first spelled out
import random
import sys
from collections.abc import Iterator
from typing import Any

JSON = [
    *(None, True, False, "", "x", "\ud800", "a\nb\x1b[31m", "é" * 300, [], {}, [1], {"a": 1}),
    *(-1, 0, 1, 2, 7, 0.5, -0.5, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 1e300, -1e300, 1e-320),
    *([None], [[]], [[1, 2], [3]], [0.5] * 40, "__import__('os').system('true')", "os:abort"),
    *(
        "/bin/sh:main",
        "tests/helpers/worlds.py:make_drawn",
        "CartPole-v1",
        "learned",
        "q",
        "sha256",
    ),
]
"""Values that stand where another belongs."""


def mutate_json(document: Any, pick: random.Random) -> Any:
    """Change, drop, double or move one value anywhere inside; the document itself is changed."""
    top = [document]
    inside, at = top, 0  # the list or mapping, and where in it
    while isinstance(inside[at], dict | list) and inside[at] and pick.random() < 0.85:
        inside = inside[at]
        at = pick.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    kind, old = pick.random(), copy.deepcopy(inside[at])
    if kind < 0.15:
        del inside[at]
    elif kind < 0.25 and isinstance(inside, dict):
        inside[pick.choice([*inside, "x"])] = old
    elif kind < 0.25:
        inside.insert(at, old)
    elif kind < 0.4 and type(old) in (int, float):
        inside[at] = pick.choice([-old, old + 1, old * 1e3, old * 1e-9, old / 3])
    elif kind < 0.5 and isinstance(old, str) and len(old) > 60:
        inside[at] = mutate_base64(old, pick)
    else:
        inside[at] = copy.deepcopy(pick.choice(JSON))
    return top[0] if top else None


def mutate_base64(text: str, pick: random.Random) -> str:
    """Change the bytes behind a text, if it is base64 of any."""
    with contextlib.suppress(ValueError):
        return base64.b64encode(mutate_bytes(base64.b64decode(text), pick)).decode()
    return text[::-1]


def mutate_bytes(content: bytes, pick: random.Random) -> bytes:
    """Change a few bytes, and sometimes cut the rest off or repeat it."""
    changed = bytearray(content)
    for _ in range(pick.choice([1, 1, 2, 20])):
        if changed:
            changed[pick.randrange(len(changed))] = pick.randrange(256)
    cut = pick.randrange(len(changed) + 1)
    return bytes(pick.choice([changed] * 4 + [changed[:cut], changed + changed[cut:]]))


CODE = ("import", "exec", "compile", "pickle.", "marshal.load", "ctypes.")
PROGRAMS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")
"""Names of audit events (or how they begin): code that is run or loaded; and programs and hosts."""


class Guard:
    """Notes each attempt to run or load code, to start a program or to reach another host."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._events: tuple[str, ...] = ()
        sys.addaudithook(self._note)  # cannot be removed

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._events and event.startswith(self._events):
            self.seen.append(f"{event} {arguments!r:.200}")

    @contextlib.contextmanager
    def watching(self, *events: str) -> Iterator[None]:
        """Note what happens in a block."""
        self._events = events
        try:
            yield
        finally:
            self._events = ()
