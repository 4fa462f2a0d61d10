"""An environment's identity: a hash of its text, layers, spaces and behaviour."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from safemargin.core.former_names import recorded_class
from safemargin.environments import graph
from safemargin.environments.simulator import Env, Simulator, Step, layers_of
from safemargin.environments.spec import EnvironmentSpec
from safemargin.environments.ways import SnapshotSimulator

_STEPS = 64
_SEED = 20_240_918


class ActionSource:
    """Draws random actions from a space without touching the space's own generator."""

    def __init__(self, env: Env, seed: int) -> None:
        self._space = copy.deepcopy(env.action_space)
        self._space.seed(seed)

    def draw(self, mask: np.ndarray[Any, Any] | None = None) -> Any:
        """Draw an action; a legal one where a discrete space comes with a mask."""
        if mask is not None and hasattr(self._space, "n"):
            return self._space.sample(mask=np.asarray(mask, dtype=np.int8))
        return self._space.sample()


def environment_identity(
    spec: EnvironmentSpec, env: Env, behaves: Iterable[bytes] | None = None
) -> str:
    """Return 'sha256:…', the same in every process and run.

    Resets the environment, unless `behaves` says what `behaviour` has found out about it.
    """
    hashed = hashlib.sha256(spec.identity.encode())
    for layer in layers_of(env):
        # The module of a class from a file is named after the file's path. It was once named
        # after the file alone, and recorded hashes contain that name.
        name = recorded_class(type(layer))
        name = re.sub(r"^safemargin_file_(\w+)_[0-9a-f]{12}\b", r"safemargin_environment_\1", name)
        hashed.update(name.encode())
        hashed.update(str(vars(layer).get("safemargin_identity", "")).encode())
    for part in behaviour(env) if behaves is None else behaves:
        hashed.update(part)
    return f"sha256:{hashed.hexdigest()}"


def behaviour(env: Env) -> list[bytes]:
    """Return the spaces and the outcomes of a few random actions; resets the environment."""
    found = [repr((env.action_space, env.observation_space)).encode()]
    for observation, step in random_walk(SnapshotSimulator(env), _SEED, _STEPS):
        outcome = [observation]
        if step is not None:
            outcome += [step.reward, step.terminated, step.truncated]
        found.append(graph.recorded_bytes(outcome))
    return found


def random_walk(simulator: Simulator, seed: int, steps: int) -> Iterator[tuple[Any, Step | None]]:
    """Take random steps; yield each observation, with the step that led to it (None: a reset)."""
    actions = ActionSource(simulator.env, seed)
    resets = 0
    yield simulator.reset(seed), None
    for _ in range(steps):
        if simulator.ended:
            resets += 1
            yield simulator.reset(seed + resets), None
        step = simulator.step(actions.draw(simulator.mask))
        yield step.observation, step
