"""Rollouts of one moment that reach the same state share what follows (design decision 3).

With a deterministic environment and policy, two rollouts that reach the same full state after the
same number of steps have the same future. So a rollout is cut where it reaches a state in which
another rollout of the moment was under the policy, and takes over the rewards that follow there,
including those still to be earned. Returns equal those of the whole rollout, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from safemargin.environments import Simulator
from safemargin.policies.base import Memory

COMPARE_EVERY = 2
"""States are compared every this many steps: a lookup costs a tenth of a step or more."""

TRIAL_ROLLOUTS = 6
"""Lookups continue for this many whole rollouts of each n before they have to pay off."""

MAX_STATES = 200_000
"""At most this many states of a moment are remembered."""

BYTES_PER_STATE = 150
"""Memory for a digest and its dictionary entry."""


@dataclass(slots=True, eq=False)
class Rollout:
    """The rewards (or other signals) of a rollout, up to where it ends or follows another."""

    rewards: list[tuple[float, ...]] = field(default_factory=list)
    finished: bool = False
    """Whether it ended or reached the horizon."""
    follows: Rollout | None = None
    """The rollout whose rewards continue this one."""
    followers: int = 0
    abandoned: bool = False
    """Whether it was stopped before its end."""
    drew: bool = False
    """Whether the environment drew random numbers; known once it is finished."""

    @property
    def over(self) -> bool:
        """Whether none of its steps are left to simulate."""
        return self.finished or self.follows is not None

    @property
    def last(self) -> Rollout:
        """The rollout that provides the end of this one."""
        rollout = self
        while rollout.follows is not None:
            rollout = rollout.follows
        return rollout

    @property
    def complete(self) -> bool:
        """Whether all rewards are known."""
        return self.last.finished

    def all_rewards(self) -> list[tuple[float, ...]]:
        """Return its own rewards and those that it takes over."""
        rewards = list(self.rewards)
        rollout = self
        while rollout.follows is not None:
            rollout = rollout.follows
            rewards += rollout.rewards[len(rewards) :]
        return rewards

    def follow(self, other: Rollout) -> None:
        """Take over the rewards of another rollout from here on."""
        self.follows = other
        other.followers += 1


class StateIndex:
    """An index of the states in which the rollouts of one moment were under the policy."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._visited: list[dict[bytes, Rollout]] = [{} for _ in range(horizon)]
        self.remembered = 0
        """The number of states held."""
        self._lookups: Counter[int] = Counter()
        self._saved_steps: Counter[int] = Counter()

    def pays_off(self, n: int) -> bool:
        """Whether lookups have saved enough steps so far for trials of n random actions.

        In many worlds states hardly ever recur, or only after few mistakes. A lookup costs about
        half a step.
        """
        lookups = self._lookups[n]
        on_trial = lookups < TRIAL_ROLLOUTS * self._horizon // COMPARE_EVERY
        return on_trial or 2 * self._saved_steps[n] >= lookups

    def add_finished(self, states: Iterable[bytes], rollout: Rollout) -> None:
        """Add a finished rollout; `states` are the digests after each of its steps."""
        for position, state in enumerate(states, start=1):
            if position % COMPARE_EVERY == 0 and position < self._horizon:
                self._visited[position][state] = rollout

    def match_or_add(
        self, position: int, simulator: Simulator, memory: Memory, rollout: Rollout, n: int = 0
    ) -> Rollout | None:
        """Return an earlier rollout in the same state after `position` steps, or add this one.

        `n` is the number of random actions that the rollout started with.
        """
        if position % COMPARE_EVERY or not (simulator.digest_is_cheap or self.pays_off(n)):
            return None
        visited = self._visited[position]
        self._lookups[n] += bool(visited)
        state = simulator.digest()
        if state is None:  # part of the state cannot be hashed
            return None
        if memory is not None:
            state = _with_memory(state, memory)
        earlier = visited.get(state)
        if earlier is not None:
            last = earlier.last
            if not last.abandoned:
                length = len(last.rewards) if last.finished else self._horizon
                self._saved_steps[n] += length - position
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
