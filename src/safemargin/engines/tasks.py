"""The queue of tasks: a task whose worker died is repeated, but only a few times."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from safemargin.engines.base import Bundle, Task
from safemargin.errors import EngineFault

ATTEMPTS = 3
"""The study stops when this many workers have died on one task."""

TOGETHER = 128
"""Where workers do tasks on an accelerator, each gets this many at a time."""


@dataclass(slots=True)
class Attempt:
    """A task, with the number of workers that died on it."""

    task: Task | Bundle
    deaths: int = 0


class TaskQueue:
    """The remaining tasks; those of dead workers come first."""

    def __init__(self, tasks: Iterable[Task], *, together: bool = False) -> None:
        """With `together`, tasks are handed out in bundles."""
        every = iter(tasks)
        self._fresh: Iterator[Task | Bundle] = every
        if together:
            self._fresh = map(Bundle, iter(lambda: tuple(itertools.islice(every, TOGETHER)), ()))
        self._waiting: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        """Return the next task, or None when there are no more."""
        return self._waiting.popleft() if self.has(1) else None

    def has(self, count: int) -> bool:
        """Whether at least `count` tasks are left; takes no more than these from the source."""
        while len(self._waiting) < count:
            task = next(self._fresh, None)
            if task is None:
                return False
            self._waiting.append(Attempt(task))
        return True

    def retry(self, attempt: Attempt, *, worker: str, reason: str, advice: str) -> None:
        """Queue the task of a dead worker again; raise EngineFault after too many deaths."""
        attempt.deaths += 1
        if attempt.deaths >= ATTEMPTS:
            raise EngineFault(
                f"{worker} died {ATTEMPTS} times on the same task ({reason}); what was finished "
                f"is kept, and {advice} shows more"
            )
        self._waiting.appendleft(attempt)
