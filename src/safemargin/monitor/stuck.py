"""Is an agent stuck? It meets nothing new, or has earned nothing for unusually long.

Margins do not show this: an agent that goes round in circles is in no danger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from safemargin.core.text import counted
from safemargin.errors import InvalidInput

NEW = 0.1
"""An agent goes round in circles if no more than this share of its recent states was new."""
FEWEST = 20
"""Decisions, at least, that this is judged by."""
UNUSUAL = 3.0
"""A drought is unusual if it is this many times the longest that ended with a reward."""
MOST_STATES = 200_000
"""States that are remembered of an episode; further ones count as new."""


@dataclass(slots=True)
class _Past:
    """What is known of one agent's episode."""

    began: float
    """When the episode, or the time since the last reward, began."""
    known: set[Hashable] = field(default_factory=set)
    recent: deque[tuple[float, bool]] = field(default_factory=deque)
    """When a state came, and whether it was new."""
    new: int = 0
    """How many of the recent ones were."""


class Stuck:
    """Watches the progress of all agents of a team.

    A positive reward is progress. Without one for `patience` seconds, an agent is stuck if it meets
    nearly only states that it has met before in the episode. And it is stuck if it has earned
    nothing for `drought` seconds, and for three times as long as any agent of the team ever did
    before a reward. Where no agent has ever earned anything, droughts mean nothing.
    """

    def __init__(self, *, patience: float = 30.0, drought: float = 60.0) -> None:
        if not patience > 0 or not drought > 0:
            raise InvalidInput(
                f"patience and drought must be above 0 s, got {patience:g} and {drought:g}"
            )
        self.patience = patience
        self.drought = drought
        self._longest: float | None = None
        """The longest drought of any agent that a reward has ended."""
        self._pasts: dict[Hashable, _Past] = {}

    def see(self, agent: Hashable, now: float, reward: float | None, state: Hashable | None) -> str:
        """Take in a decision; return why the agent is stuck, or nothing.

        `reward`: what the decision before it brought. `state`: equal for equal states.
        """
        past = self._pasts.get(agent)
        if past is None:
            past = self._pasts[agent] = _Past(now)
        if reward is None:
            return ""
        if reward > 0:
            self._longest = max(self._longest or 0.0, now - past.began)
            self._pasts[agent] = past = _Past(now)
        why = "" if state is None else self._circles(past, now, state)
        return why or self._drought(now - past.began)

    def forget(self, agent: Hashable) -> None:
        """Note that the agent's next decision begins an episode."""
        self._pasts.pop(agent, None)

    def _circles(self, past: _Past, now: float, state: Hashable) -> str:
        new = state not in past.known
        if new and len(past.known) < MOST_STATES:
            past.known.add(state)
        recent = past.recent
        recent.append((now, new))
        past.new += new
        while recent[0][0] < now - self.patience:
            past.new -= recent.popleft()[1]
        if now - past.began < self.patience:
            return ""
        if len(recent) < FEWEST or past.new > NEW * len(recent):
            return ""
        return (
            f"it goes round in circles: of {counted(len(recent), 'state')} in the last "
            f"{self.patience:g} s, {past.new} were new, and none brought a reward"
        )

    def _drought(self, lasted: float) -> str:
        if self._longest is None or lasted < max(self.drought, UNUSUAL * self._longest):
            return ""
        return (
            f"no reward for {lasted:.0f} s; the longest drought that ended with one took "
            f"{self._longest:.0f} s"
        )
