"""Shows an environment another time, to find out whether it depends on the clock."""

from __future__ import annotations

import contextlib
import datetime
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

OFFSETS = (0.0, 0.000_4, 100_003, 34_560_011, 20_000.5, 3_000.1)
"""Clocks start this many seconds before a fixed time, at which seconds, hours and a year begin.

The first two lie just after and just before that time, so whatever clock flips at whole fractions
of a second, or at whole seconds, shows one of them another side than the real clock did. The others
(a day, a year and odd fractions) are for clocks that flip at other times.
"""

_CLOCKS = ("time", "monotonic", "perf_counter")
_CALENDARS = ("localtime", "gmtime", "ctime")
_KINDS = (datetime.datetime, datetime.date)
_READERS = {*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS), "now", "utcnow", "today"}
_NEW_YEAR = 1_577_836_800.0
"""The beginning of 2020."""
_TICK, _GROWTH = 1e-6, 1e-4


@contextlib.contextmanager
def fixed_clocks(before: float = 0.0) -> Iterator[None]:
    """Let Python code in this thread read clocks that always start at the same time.

    They start `before` seconds before the beginning of 2020; those that count from the start of the
    machine, before a power of two of seconds. They tick with each reading, by a microsecond, and
    faster once thousands of readings show that something waits; sleeping only moves them. They
    never show a time that is still to come, because a module may remember when it was last called:
    later, it would wait until the real clock has caught up.
    """
    start = {}
    for real in (getattr(time, name) for name in _CLOCKS):
        begins = _NEW_YEAR if real is time.time else 2.0 ** math.floor(math.log2(real() / 2))
        start[real] = begins - (before if begins > before else (int(begins) // 2 | 1) + before % 1)
    ticked = slept = 0.0

    def read(real: Callable[[], float]) -> float:
        nonlocal ticked
        ticked += max(_TICK, ticked * _GROWTH)
        return min(start[real] + slept + ticked, real())

    def sleep(duration: float) -> None:
        nonlocal slept
        slept += duration

    with _clocks(read, sleep):
        yield


@contextlib.contextmanager
def readings_of_real_clocks() -> Iterator[set[str]]:
    """Collect the real clocks that code in this thread reads, which nobody can set.

    Those are held elsewhere than in a module's names: as a function's default, or in a class.
    """
    found: set[str] = set()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and frame.f_code.co_filename != __file__:
            owner = getattr(called, "__self__", None)
            for each in (time, *_KINDS):
                if owner is each and called.__name__ in _READERS:
                    found.add(f"{each.__name__}.{called.__name__}")

    if sys.getprofile() is not None:  # somebody measures this very run
        yield found
        return
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def _clocks(
    read: Callable[[Callable[[], float]], float], sleep: Callable[[float], None]
) -> Iterator[None]:
    """Replace the clocks wherever a module holds them; other threads read the real ones."""
    thread = threading.get_ident()
    active = True

    def ours() -> bool:
        return active and threading.get_ident() == thread

    def either(real: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (other if ours() else real)(*given)

    def clock(name: str) -> Callable[[], float]:
        real: Callable[[], float] = getattr(time, name)
        return lambda: read(real)

    now = clock("time")
    replaced: dict[Any, Any] = {time.sleep: either(time.sleep, sleep)}
    for name in _CLOCKS:
        shown = clock(name)
        replaced[getattr(time, name)] = either(getattr(time, name), shown)
        in_ns = getattr(time, f"{name}_ns")
        replaced[in_ns] = either(in_ns, lambda shown=shown: int(shown() * 1e9))
    for name in _CALENDARS:
        real = getattr(time, name)
        replaced[real] = either(real, lambda at=None, real=real: real(now() if at is None else at))
    for kind in _KINDS:
        replaced[kind] = _calendar(kind, lambda: now() if ours() else time.time())
    stand_ins = {id(real): stand_in for real, stand_in in replaced.items()}
    held = [
        (module, name, value)
        for module in list(sys.modules.values())
        for names in [dict(getattr(module, "__dict__", {}))]
        if not stand_ins.keys().isdisjoint(map(id, names.values()))  # few of thousands of modules
        for name, value in names.items()
        if id(value) in stand_ins
    ]
    try:
        for module, name, value in held:
            setattr(module, name, stand_ins[id(value)])
        yield
    finally:
        active = False
        for module, name, value in held:
            setattr(module, name, value)


def _calendar(kind: Any, now: Callable[[], float]) -> Any:
    """Return a stand-in for `datetime.datetime` or `date`, which makes real ones of another now."""

    class Kind(type(kind)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, kind)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind)

    class Calendar(kind, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, *given: Any, **named: Any) -> Any:
            return kind(*given, **named)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return kind.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return kind.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return kind.fromtimestamp(now())

    return Calendar
