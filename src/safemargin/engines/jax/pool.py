"""The groups of lanes on all devices: they take runs from a queue, and are always kept busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safemargin.engines.jax.group import Group, Run
from safemargin.engines.jax.program import Program, Start
from safemargin.environments.functional.keys import key_of_seed
from safemargin.errors import EngineFault

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
"""What the messages of XLA say then."""


@dataclass(eq=False)
class Bank:
    """Places where lanes can begin, on every device that asked for them."""

    start: Start
    _copies: dict[Any, Start] = field(default_factory=dict)

    def on(self, program: Program, device: Any) -> Start:
        """Return it as arrays of a device."""
        if device not in self._copies:
            self._copies[device] = program.jax.device_put(self.start, device)
        return self._copies[device]


class Clock:
    """Says how long each piece took, if they come one after another."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


class Pool:
    """Runs lanes on devices; the number of groups changes no result."""

    def __init__(self, program: Program, devices: Sequence[Any], groups: int) -> None:
        self.program = program
        self._params = {
            device: program.jax.device_put(program.policy.params, device) for device in devices
        }
        self._idle = deque(
            Group(program, device, params)
            for _ in range(groups)
            for device, params in self._params.items()
        )
        self._flying: deque[tuple[Group, Bank]] = deque()
        self._waiting: deque[tuple[Bank, Run]] = deque()
        self._banks: dict[Group, Bank] = {}
        """The banks of groups that have something to do."""
        self._origin: dict[int, Bank] = {}
        """The bank that each run under way began in, by its id."""
        self.halved = 0
        """How often there was too little memory."""

    @property
    def lanes(self) -> int:
        """How many runs fit into all groups."""
        return (len(self._idle) + len(self._flying)) * self.program.size

    @property
    def waiting(self) -> int:
        """The number of runs that no lane has taken yet."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._waiting or self._flying or self._origin)

    def add(self, bank: Bank, runs: Iterable[Run]) -> None:
        """Queue runs that begin in this bank."""
        self._waiting.extend((bank, run) for run in runs)

    def starts(self, seeds: Sequence[int]) -> Bank:
        """Return the first states of episodes reset with these seeds, in this order."""
        program = self.program
        keys = np.zeros((program.size, 2), np.uint32)
        keys[: len(seeds)] = [key_of_seed(seed) for seed in seeds]
        return Bank(program.starts(keys.reshape(program.tiles, program.lanes, 2)))

    def one_more(self) -> Group:
        """Return a group of its own, for replays, on the first device."""
        device, params = next(iter(self._params.items()))
        return Group(self.program, device, params)

    def turn(self) -> list[Run]:
        """Start what can be started, wait for one call, and return the runs that it finished."""
        for _ in range(len(self._idle)):
            group = self._idle.popleft()
            if not self._launch(group):
                self._idle.append(group)
        if not self._flying:
            return []
        group, _ = self._flying.popleft()
        try:
            runs = group.land()
        except RuntimeError as error:
            self.halve(error, group)
            return []
        self._idle.append(group)
        for run in runs:
            del self._origin[id(run)]
        return runs

    def _launch(self, group: Group) -> bool:
        """Fill a group and begin a call; False where it has nothing to do."""
        bank = self._fill(group)
        if bank is None or not group.busy:
            return False
        try:
            group.launch(bank.on(self.program, group.device))
        except RuntimeError as error:
            self.halve(error, group)
            return True
        self._banks[group] = bank
        self._flying.append((group, bank))
        return True

    def _fill(self, group: Group) -> Bank | None:
        """Give waiting runs to a group's free lanes, as far as they begin in one bank."""
        if not self._waiting or not group.free:
            return self._banks.get(group)
        bank = self._waiting[0][0]
        runs: list[Run] = []
        while self._waiting and len(runs) < len(group.free) and self._waiting[0][0] is bank:
            run = self._waiting.popleft()[1]
            self._origin[id(run)] = bank
            runs.append(run)
        group.begin(runs)
        return bank

    def halve(self, error: Exception, failed: Group | None = None) -> None:
        """Go on with half of the groups if memory was too small; the runs start anew."""
        if not any(text in str(error) for text in OUT_OF_MEMORY):
            raise error
        others = [*self._idle, *(each for each, _ in self._flying)]
        if len(others) + (failed is not None) < 2:
            raise EngineFault(
                f"the device has too little memory for {self.program.size} lanes of "
                f"{self.program.functional.name!r}: run it elsewhere (--engine processes)"
            ) from error
        self.halved += 1
        dropped = set(others[(len(others) + 1) // 2 :]) | ({failed} if failed else set())
        self._idle = deque(each for each in self._idle if each not in dropped)
        self._flying = deque(each for each in self._flying if each[0] not in dropped)
        for each in dropped:
            self._banks.pop(each, None)
            for run in each.abandon():
                self._waiting.appendleft((self._origin.pop(id(run)), run))
