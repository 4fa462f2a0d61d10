"""Tasks on their way to workers: one whose worker died is done again, but not for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from safemargin.engines.base import Task
from safemargin.errors import EngineFault

ATTEMPTS = 3
"""How often one task may kill its worker before the study stops."""


@dataclass(slots=True)
class Attempt:
    """A task, and how many workers died on it."""

    task: Task
    deaths: int = 0


class TaskQueue:
    """Tasks to do; those handed back by a dead worker come first."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._fresh = iter(tasks)
        self._waiting: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        """The next task, or None where there is no more."""
        return self._waiting.popleft() if self.has(1) else None

    def has(self, count: int) -> bool:
        """Whether there are so many tasks to do; no more than these are asked for."""
        while len(self._waiting) < count:
            task = next(self._fresh, None)
            if task is None:
                return False
            self._waiting.append(Attempt(task))
        return True

    def retry(self, attempt: Attempt, *, worker: str, reason: str, advice: str) -> None:
        """Have a task done again whose worker died; EngineFault where that is hopeless."""
        attempt.deaths += 1
        if attempt.deaths >= ATTEMPTS:
            raise EngineFault(
                f"{worker} died {ATTEMPTS} times on the same task ({reason}); what was finished "
                f"is kept, and {advice} shows more"
            )
        self._waiting.appendleft(attempt)
