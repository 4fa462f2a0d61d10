"""Rollouts of one moment that meet share what follows (design decision 3).

With a deterministic environment and policy, two rollouts that reach the same full state after the
same number of steps have the same future. So a rollout is cut where it reaches a state that another
rollout of the moment has left under the policy, and takes over the rewards that followed there.
Returns are those of the whole rollout, bit for bit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from safemargin.environments import Simulator
from safemargin.policies.base import Memory

PATIENCE = 300
"""So many states are looked at before it is asked whether that pays."""

LARGEST = 200_000
"""So many states of a moment are remembered at most: about 30 MB."""


@dataclass(slots=True)
class Rollout:
    """The rewards of one rollout, complete once it has ended or met another one."""

    rewards: list[float] = field(default_factory=list)
    ended: bool = False


class Meetings:
    """Every state that the rollouts of one moment have left under the policy."""

    def __init__(self, horizon: int) -> None:
        self._visited: list[dict[bytes, Rollout]] = [{} for _ in range(horizon)]
        self.remembered = 0
        """States held."""
        self.looked = 0
        """States compared."""
        self.saved = 0
        """Steps that need not be simulated."""

    @property
    def worthwhile(self) -> bool:
        """Whether looking has paid so far: in many worlds hardly any state ever comes again.

        A look costs about half of a step.
        """
        return self.looked < PATIENCE or 2 * self.saved >= self.looked

    def arrive(
        self, position: int, simulator: Simulator, memory: Memory, rollout: Rollout
    ) -> Rollout | None:
        """The rollout that was here before, after so many steps; else remember this one."""
        if not self.worthwhile:
            return None
        self.looked += 1
        state = simulator.digest() if memory is None else _with_memory(simulator, memory)
        earlier = self._visited[position].get(state)
        if earlier is not None:
            self.saved += len(earlier.rewards) - position
            return earlier
        if self.remembered < LARGEST:
            self.remembered += 1
            self._visited[position][state] = rollout
        return None


def _with_memory(simulator: Simulator, memory: Memory) -> bytes:
    digest = hashlib.sha256(simulator.digest())
    for part in memory or ():
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(part.tobytes())
    return digest.digest()[:16]
