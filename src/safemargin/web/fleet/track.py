"""The last decisions of one agent in arrays of fixed size, so that memory does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from safemargin.core.plain import finite_or_none
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


ROW = {
    "episodes": np.int32,
    "steps": np.int32,
    "margins": np.int32,
    "proxies": np.float64,  # like what agents send: nothing overflows
    "flags": np.uint8,
}


class Track:
    """A ring buffer of decisions."""

    def __init__(self, length: int = LENGTH) -> None:
        self.count = 0
        """How many were ever added."""
        self._rows = np.zeros(length, dtype=list(ROW.items()))

    def add(self, episode: int, step: int, margin: int, proxy: float | None, flags: int) -> None:
        """Add a decision in place of the oldest."""
        row = episode, step, margin, np.nan if proxy is None else proxy, flags
        self._rows[self.count % len(self._rows)] = row
        self.count += 1

    def last(self, most: int | None = None) -> dict[str, list[Any]]:
        """Return the newest decisions, oldest first, as plain numbers."""
        kept = min(self.count, len(self._rows))
        wanted = kept if most is None else min(kept, most)
        rows = self._rows[np.arange(self.count - wanted, self.count) % len(self._rows)]
        proxies = [finite_or_none(round(value, 5)) for value in rows["proxies"].tolist()]
        return {name: rows[name].tolist() for name in ROW} | {"proxies": proxies}
