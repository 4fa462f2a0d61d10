"""Rollouts of one moment that meet share what follows (design decision 3).

With a deterministic environment and policy, two rollouts that reach the same full state after the
same number of steps have the same future. So a rollout is cut where it reaches a state that another
rollout of the moment has left under the policy, and takes over the rewards that follow there, also
those that the other one has yet to earn. Returns are those of the whole rollout, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from safemargin.environments import Simulator
from safemargin.policies.base import Memory

COMPARE_EVERY = 2
"""States are compared after so many steps: a look costs a tenth of a step or more."""

TRIAL_ROLLOUTS = 6
"""So many whole rollouts of each n are looked at before it is asked whether that pays."""

MAX_STATES = 200_000
"""So many states of a moment are remembered at most."""

BYTES_PER_STATE = 150
"""Of memory: a digest and its place in a dictionary."""


@dataclass(slots=True, eq=False)
class Rollout:
    """The rewards of one rollout, up to where it finished or began to follow another one."""

    rewards: list[float] = field(default_factory=list)
    finished: bool = False
    """It ended or reached the horizon."""
    follows: Rollout | None = None
    """The rollout that it met; from there on the two are one."""
    followers: int = 0
    abandoned: bool = False
    """Nobody will finish it."""

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to simulate."""
        return self.finished or self.follows is not None

    @property
    def last(self) -> Rollout:
        """The rollout that brings this one to its end."""
        rollout = self
        while rollout.follows is not None:
            rollout = rollout.follows
        return rollout

    @property
    def complete(self) -> bool:
        """Whether all rewards are known."""
        return self.last.finished

    def all_rewards(self) -> list[float]:
        """Its own rewards and those that it takes over."""
        rewards = list(self.rewards)
        rollout = self
        while rollout.follows is not None:
            rollout = rollout.follows
            rewards += rollout.rewards[len(rewards) :]
        return rewards

    def follow(self, other: Rollout) -> None:
        """Be one with the other from here on."""
        self.follows = other
        other.followers += 1


class StateIndex:
    """States in which the rollouts of one moment were under the policy."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._visited: list[dict[bytes, Rollout]] = [{} for _ in range(horizon)]
        self.remembered = 0
        """States held."""
        self._looked: Counter[int] = Counter()
        self._saved: Counter[int] = Counter()

    def pays_off(self, n: int) -> bool:
        """Whether looking has paid so far for trials of n random actions.

        In many worlds hardly any state ever comes again, or only after few mistakes. A look costs
        about half of a step.
        """
        looked = self._looked[n]
        return (
            looked < TRIAL_ROLLOUTS * self._horizon // COMPARE_EVERY or 2 * self._saved[n] >= looked
        )

    def add_finished(self, states: Iterable[bytes], rollout: Rollout) -> None:
        """A finished rollout that comes through these states, digests of those after each step."""
        for position, state in enumerate(states, start=1):
            if position % COMPARE_EVERY == 0 and position < self._horizon:
                self._visited[position][state] = rollout

    def match_or_add(
        self, position: int, simulator: Simulator, memory: Memory, rollout: Rollout, n: int = 0
    ) -> Rollout | None:
        """The rollout that was here before, after so many steps; else remember this one.

        `n`: how many random actions the rollout began with.
        """
        if position % COMPARE_EVERY or not (simulator.digest_is_cheap or self.pays_off(n)):
            return None
        visited = self._visited[position]
        self._looked[n] += bool(visited)
        state = simulator.digest()
        if state is None:  # something came up that cannot be looked into
            return None
        if memory is not None:
            state = _with_memory(state, memory)
        earlier = visited.get(state)
        if earlier is not None:
            last = earlier.last
            if not last.abandoned:
                length = len(last.rewards) if last.finished else self._horizon
                self._saved[n] += length - position
                return earlier
        elif self.remembered < MAX_STATES:
            self.remembered += 1
        else:
            return None
        visited[state] = rollout
        return None


def _with_memory(state: bytes, memory: Memory) -> bytes:
    digest = hashlib.sha256(state)
    for part in memory or ():
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        digest.update(part.tobytes())
    return digest.digest()[:16]
