"""What has happened in a fleet that a page does not know yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class News:
    """Decisions, agents, pictures and log entries that are new to a page."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Decisions: index, episode, step, margin, proxy, flags."""
    changed: set[int] = field(default_factory=set)
    """Indices of agents whose state has changed."""
    pictured: set[int] = field(default_factory=set)
    """Indices of agents with a new picture."""
    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: News) -> None:
        """Append later news."""
        self.rows.extend(other.rows)
        self.changed |= other.changed
        self.pictured |= other.pictured
        self.entries.extend(other.entries)
