"""The groups of lanes: they take runs from a queue, and are always kept busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from safemargin.engines.jax.group import Group, Numbers
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.runs import Bank, Runs
from safemargin.environments.functional.keys import key_of_seed
from safemargin.errors import EngineFault

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
"""What the messages of XLA say then."""


class Clock:
    """Says how long each piece took, if they come one after another."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


class Pool:
    """Runs lanes; the number of groups changes no result."""

    def __init__(self, parts: Parts, groups: int) -> None:
        self._parts, program = parts, parts.program
        self.program = program
        self._params = program.jax.device_put(program.policy.params, program.whole)
        self._idle = deque(self.one_more() for _ in range(groups))
        self._flying: deque[Group] = deque()
        self._waiting: deque[tuple[Runs, Numbers]] = deque()
        self._banks: dict[Group, Bank] = {}
        """Where the lanes of groups began last."""
        self.waiting = 0
        """The number of runs that no lane has taken yet."""
        self.halved = 0
        """How often there was too little memory."""

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self._flying or any(group.busy for group in self._idle))

    def add(self, runs: Runs) -> None:
        """Queue the runs of a batch."""
        if len(runs):
            self._waiting.append((runs, np.arange(len(runs))))
            self.waiting += len(runs)

    def starts(self, seeds: Sequence[int]) -> Bank:
        """Return the first states of episodes reset with these seeds, in this order."""
        program = self.program
        keys = np.zeros((program.size, 2), np.uint32)
        keys[: len(seeds)] = [key_of_seed(seed) for seed in seeds]
        return Bank(program.starts(keys.reshape(program.tiles, program.lanes, 2)))

    def one_more(self) -> Group:
        """Return a group of its own, for replays."""
        return Group(self._parts, self._params)

    def turn(self) -> list[Runs]:
        """Start what can be started and wait for one call; return batches of which runs ended."""
        for _ in range(len(self._idle)):
            group = self._idle.popleft()
            if not self._launch(group):
                self._idle.append(group)
        if not self._flying:
            return []
        group = self._flying.popleft()
        try:
            landed = group.land()
        except RuntimeError as error:
            self.halve(error, group)
            return []
        self._idle.append(group)
        return landed.deliver()

    def _launch(self, group: Group) -> bool:
        """Fill a group and begin a call; False where it has nothing to do."""
        self._fill(group)
        if not group.busy:
            return False
        try:
            group.launch(self._banks[group].on(self.program))
        except RuntimeError as error:
            self.halve(error, group)
            return True
        self._flying.append(group)
        return True

    def _fill(self, group: Group) -> None:
        """Give waiting runs to a group's free lanes, as far as they begin in one bank."""
        free = group.free
        while self._waiting and free and self._may_begin(group):
            runs, numbers = self._waiting.popleft()
            if len(numbers) > free:
                self._waiting.appendleft((runs, numbers[free:]))
            group.begin(runs, numbers[:free])
            taken = min(len(numbers), free)
            free -= taken
            self.waiting -= taken
            self._banks[group] = runs.bank

    def _may_begin(self, group: Group) -> bool:
        """Whether the first runs that wait begin in the bank of those that begin there now."""
        return not group.beginning or self._banks[group] is self._waiting[0][0].bank

    def halve(self, error: Exception, failed: Group | None = None) -> None:
        """Go on with half of the groups if memory was too small; the runs start anew."""
        if not any(text in str(error) for text in OUT_OF_MEMORY):
            raise error
        others = [*self._idle, *self._flying]
        if len(others) + (failed is not None) < 2:
            raise EngineFault(
                f"the device has too little memory for {self.program.size} lanes of "
                f"{self.program.functional.name!r}: run it elsewhere (--engine processes)"
            ) from error
        self.halved += 1
        dropped = set(others[(len(others) + 1) // 2 :]) | ({failed} if failed else set())
        self._idle = deque(each for each in self._idle if each not in dropped)
        self._flying = deque(each for each in self._flying if each not in dropped)
        for group in dropped:
            self._banks.pop(group, None)
            for runs, numbers in group.abandon():
                self._waiting.appendleft((runs, numbers))
                self.waiting += len(numbers)
