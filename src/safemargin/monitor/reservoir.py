"""Reservoir sampling: one random decision of each live episode, in the order episodes began."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, plain_generator, plain_uniform, stream


def new_generator(key: int, seed: int | None) -> np.random.Generator:
    """Return a generator of the monitor's own; without a seed, it differs every time."""
    return plain_generator(None) if seed is None else stream(seed, Purpose.MONITOR, key)


class Reservoir:
    """Keeps one decision of the current episode of one agent."""

    def __init__(self, seed: int | None = None) -> None:
        self._seen = 0
        self._kept = 0.0
        self._uniform = plain_uniform(seed)

    def see(self, proxy: float) -> int:
        """Add one decision; return how many the episode has so far."""
        self._seen += 1
        if self._uniform() * self._seen < 1:
            self._kept = proxy
        return self._seen

    def end(self, agents: Iterable[int], *, counted: bool) -> list[float]:
        """End the only agent's episode; return its value, or nothing where it does not count."""
        values = [self._kept] if counted and self._seen else []
        self._seen = 0
        return values


class FleetReservoir:
    """Keeps one decision of the current episode of each of many agents.

    Short episodes end first, so taking values as they come would favour them. Every episode gets a
    ticket when it begins, and values are handed on in the order of the tickets.
    """

    def __init__(self, agents: int, seed: int | None = None) -> None:
        self._seen = np.zeros(agents, dtype=np.int64)  # [agents]
        self.kept: Floats = np.zeros(agents)  # [agents]
        self._generator = new_generator(2, seed)
        self._tickets = np.arange(agents)  # [agents]
        self._next_ticket, self._expected = agents, 0
        self._waiting: dict[int, float | None] = {}

    def see(self, proxies: Floats, usable: npt.NDArray[np.bool_]) -> None:
        """Add one decision of each agent whose proxy is usable; both [agents]."""
        self._seen += usable
        taken = usable & (self._generator.random(len(usable)) * self._seen < 1)
        np.copyto(self.kept, proxies, where=taken)

    def end(self, agents: Iterable[int], *, counted: bool) -> list[float]:
        """End these agents' episodes; return the values that can now be handed on."""
        for agent in agents:
            whole = counted and self._seen[agent] > 0
            kept = float(self.kept[agent]) if whole else None
            self._waiting[int(self._tickets[agent])] = kept
            self._seen[agent] = 0
            self._tickets[agent] = self._next_ticket
            self._next_ticket += 1
        values = []
        while self._expected in self._waiting:
            value = self._waiting.pop(self._expected)
            self._expected += 1
            if value is not None:
                values.append(value)
        return values
