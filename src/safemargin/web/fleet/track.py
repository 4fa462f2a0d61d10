"""The last decisions of one agent in arrays of fixed size: a fleet's memory does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTH = 1800
"""Decisions kept of each agent: two minutes at 15 a second."""

CALL, OUTSIDE, HUMAN, VOID, MUTED = 1, 2, 4, 8, 16
"""Flags of a decision; HUMAN: a person held the agent."""


class Track:
    """A ring of decisions."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self.count = 0
        """All that were ever added."""
        self._episodes, self._steps, self._margins = np.zeros((3, length), dtype=np.int32)
        self._proxies = np.zeros(length)  # as wide as what agents send: nothing overflows
        self._flags = np.zeros(length, dtype=np.uint8)

    def add(self, episode: int, step: int, margin: int, proxy: float | None, flags: int) -> None:
        """One more decision takes the place of the oldest."""
        place = self.count % self._length
        self._episodes[place] = episode
        self._steps[place] = step
        self._margins[place] = margin
        self._proxies[place] = np.nan if proxy is None else proxy
        self._flags[place] = flags
        self.count += 1

    def last(self, most: int | None = None) -> dict[str, list[Any]]:
        """The newest ones, oldest first, as plain numbers."""
        kept = min(self.count, self._length)
        wanted = kept if most is None else min(kept, most)
        places = np.arange(self.count - wanted, self.count) % self._length
        proxies = [round(value, 5) for value in self._proxies[places].tolist()]
        return {
            "episodes": self._episodes[places].tolist(),
            "steps": self._steps[places].tolist(),
            "margins": self._margins[places].tolist(),
            "proxies": [value if value == value else None for value in proxies],
            "flags": self._flags[places].tolist(),
        }
