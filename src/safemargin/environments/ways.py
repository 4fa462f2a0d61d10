"""The two ways back to a moment: a snapshot of all state, or replay from the episode's start."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.environments import graph
from safemargin.environments.box2d import with_fresh_world
from safemargin.environments.graph import copied
from safemargin.environments.lean import AtariSimulator, atari_stack
from safemargin.environments.simulator import Env, Simulator, Snapshot, Step, Way, require_single
from safemargin.errors import EnvironmentFault, InvalidInput, did_you_mean, errors_as


@dataclass(frozen=True, slots=True)
class _Saved:
    """The saved objects, and the simulator they belong to."""

    owner: Simulator
    nodes: tuple[graph.Node, ...]


class SnapshotSimulator(Simulator):
    """Saves every object that can be reached from the layers."""

    way: Way = "snapshot"

    def _save_state(self) -> _Saved:
        with errors_as(EnvironmentFault, f"{self.name}: the state could not be saved:"):
            return _Saved(self, graph.capture(self.layers))

    def _restore_state(self, snapshot: Snapshot) -> None:
        saved = snapshot.state
        if not isinstance(saved, _Saved) or saved.owner is not self:
            raise InvalidInput("a snapshot can only be restored by the simulator that took it")
        with errors_as(EnvironmentFault, f"{self.name}: a snapshot could not be restored:"):
            graph.restore(saved.nodes)

    def digest(self) -> bytes | None:
        return graph.whole_digest([*self.layers, self.observation, self.mask, self.ended])

    @property
    def digest_is_whole(self) -> bool:
        return self.digest() is not None


_NEXT_LIFE = "the next life begins"


@dataclass(frozen=True, slots=True)
class _Recorded:
    """How to get to a moment, and the hash of that so far."""

    seed: int
    events: tuple[Any, ...]
    hashed: Any


class ReplaySimulator(Simulator):
    """Returns to a moment by resetting with the same seed and repeating the actions."""

    way: Way = "replay"

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._seed = 0
        self._history: list[Any] = []
        self._hashed = hashlib.sha256()
        """The hash of the seed and of the first `_counted` events, which grows with them."""
        self._counted = 0

    def reset(self, seed: int) -> Any:
        self._seed, self._history = seed, []
        self._hashed, self._counted = hashlib.sha256(repr(seed).encode()), 0
        return super().reset(seed)

    def step(self, action: Any, *, watched: bool = True) -> Step:
        self._history.append(copied(action))
        return super().step(action)

    def next_life(self) -> Any:
        self._history.append(_NEXT_LIFE)
        return super().next_life()

    def reseed(self, generator: np.random.Generator) -> None:
        self._history.append(copy.deepcopy(generator))
        super().reseed(generator)

    def _save_state(self) -> _Recorded:
        self.digest()
        return _Recorded(self._seed, tuple(self._history), self._hashed.copy())

    def _restore_state(self, snapshot: Snapshot) -> None:
        recorded: _Recorded = snapshot.state
        self.reset(recorded.seed)
        for event in recorded.events:
            if isinstance(event, np.random.Generator):
                self.reseed(copy.deepcopy(event))
            elif event is _NEXT_LIFE:
                self.next_life()
            else:
                self.step(event)
        if not same(self.observation, snapshot.observation):
            raise EnvironmentFault(
                f"{self.name}: replay from reset(seed={self._seed}) did not lead back to the same "
                f"observation after {snapshot.steps} steps"
            )
        self._hashed, self._counted = recorded.hashed.copy(), len(recorded.events)

    def digest(self) -> bytes:
        """Hash the seed and all actions: state that cannot be seen is known by its history."""
        for event in self._history[self._counted :]:
            if isinstance(event, np.random.Generator):
                self._hashed.update(repr(event.bit_generator.state).encode())
            else:
                self._hashed.update(graph.encoded_bytes([event]))
        self._counted = len(self._history)
        found: bytes = self._hashed.digest()[:16]
        return found


def make_simulator(env: Env, way: Way = "snapshot") -> Simulator:
    """Return a simulator for an environment, with the given way back to a moment."""
    require_single(env)
    env = with_fresh_world(env)
    if way == "snapshot":
        stack = atari_stack(env)
        return SnapshotSimulator(env) if stack is None else AtariSimulator(env, stack)
    if way == "replay":
        return ReplaySimulator(env)
    raise InvalidInput(f"way {way!r} is unknown; {did_you_mean(str(way), ['snapshot', 'replay'])}")


def same(first: Any, second: Any) -> bool:
    """Whether two observations are equal, bit for bit."""
    return graph.encoded_bytes([first]) == graph.encoded_bytes([second])
