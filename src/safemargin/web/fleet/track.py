"""The last decisions of one agent in arrays of fixed size, so that memory does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from safemargin.web.fleet.messages import Report

LENGTH = 1800
"""How many decisions of each agent are kept: two minutes at 15 a second."""

CALL, OUTSIDE, HUMAN, VOID, MUTED = 1, 2, 4, 8, 16
"""Flags of a decision; HUMAN: a person held the agent."""


def flags_of(report: Report, *, human: bool) -> int:
    """Return the flags of a decision as one number."""
    return (
        CALL * report.call
        + OUTSIDE * report.outside
        + HUMAN * human
        + VOID * report.void
        + MUTED * report.muted
    )


class Track:
    """A ring buffer of decisions."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self.count = 0
        """How many were ever added."""
        self._episodes, self._steps, self._margins = np.zeros((3, length), dtype=np.int32)
        self._proxies = np.zeros(length)  # float64, like what agents send: nothing overflows
        self._flags = np.zeros(length, dtype=np.uint8)

    def add(self, episode: int, step: int, margin: int, proxy: float | None, flags: int) -> None:
        """Add a decision in place of the oldest."""
        slot = self.count % self._length
        self._episodes[slot] = episode
        self._steps[slot] = step
        self._margins[slot] = margin
        self._proxies[slot] = np.nan if proxy is None else proxy
        self._flags[slot] = flags
        self.count += 1

    def last(self, most: int | None = None) -> dict[str, list[Any]]:
        """Return the newest decisions, oldest first, as plain numbers."""
        kept = min(self.count, self._length)
        wanted = kept if most is None else min(kept, most)
        slots = np.arange(self.count - wanted, self.count) % self._length
        proxies = [round(value, 5) for value in self._proxies[slots].tolist()]
        return {
            "episodes": self._episodes[slots].tolist(),
            "steps": self._steps[slots].tolist(),
            "margins": self._margins[slots].tolist(),
            "proxies": [value if value == value else None for value in proxies],
            "flags": self._flags[slots].tolist(),
        }
