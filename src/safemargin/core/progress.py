"""How the code that does a long computation reports its progress."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """Receives reports on how far a computation has come."""

    def stage(self, name: str, *, total: int, done: int) -> None:
        """Report that a stage starts, or that its total has grown."""

    def advance(self, steps: int) -> None:
        """Report one more finished piece of the stage, which took this many simulator steps."""


@runtime_checkable
class Expecting(Progress, Protocol):
    """Also receives forecasts, which know more than the pace so far while few pieces are done."""

    def expect(self, seconds: float, low: float, high: float) -> None:
        """Report that the rest of the stage takes this many seconds, probably low to high."""


class Silence:
    """Ignores all reports."""

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None: ...
