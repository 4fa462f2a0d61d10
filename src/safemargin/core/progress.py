"""Progress of a long computation, as the code that does the work reports it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears how a collection goes on."""

    def stage(self, name: str, *, total: int, done: int) -> None:
        """A stage begins, or its total has grown."""

    def advance(self, steps: int) -> None:
        """One more piece of the stage is finished, after so many simulator steps."""


class Silence:
    """A progress that nobody looks at."""

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None: ...
