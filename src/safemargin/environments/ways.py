"""The two ways back to a moment: a snapshot of all state, or replay from the episode's start."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.environments import graph
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


class ReplaySimulator(Simulator):
    """Returns to a moment by resetting with the same seed and repeating the actions."""

    way: Way = "replay"

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._seed = 0
        self._history: list[Any] = []

    def reset(self, seed: int) -> Any:
        self._seed, self._history = seed, []
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

    def _save_state(self) -> tuple[int, tuple[Any, ...]]:
        return self._seed, tuple(self._history)

    def _restore_state(self, snapshot: Snapshot) -> None:
        seed, history = snapshot.state
        self.reset(seed)
        for event in history:
            if isinstance(event, np.random.Generator):
                self.reseed(copy.deepcopy(event))
            elif event is _NEXT_LIFE:
                self.next_life()
            else:
                self.step(event)
        if not same(self.observation, snapshot.observation):
            raise EnvironmentFault(
                f"{self.name}: replay from reset(seed={seed}) did not lead back to the same "
                f"observation after {snapshot.steps} steps"
            )

    def digest(self) -> bytes:
        """Hash the seed and all actions: state that cannot be seen is known by its history."""
        hashed = hashlib.sha256(repr(self._seed).encode())
        for event in self._history:
            if isinstance(event, np.random.Generator):
                hashed.update(repr(event.bit_generator.state).encode())
            else:
                hashed.update(graph.encoded_bytes([event]))
        return hashed.digest()[:16]


def make_simulator(env: Env, way: Way = "snapshot") -> Simulator:
    """Return a simulator for an environment, with the given way back to a moment."""
    require_single(env)
    if way == "snapshot":
        stack = atari_stack(env)
        return SnapshotSimulator(env) if stack is None else AtariSimulator(env, stack)
    if way == "replay":
        return ReplaySimulator(env)
    raise InvalidInput(f"way {way!r} is unknown; {did_you_mean(str(way), ['snapshot', 'replay'])}")


def same(first: Any, second: Any) -> bool:
    """Whether two observations are equal, bit for bit."""
    return graph.encoded_bytes([first]) == graph.encoded_bytes([second])
