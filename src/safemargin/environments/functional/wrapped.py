"""A functional environment as an ordinary Gymnasium one, for everything that steps one by one."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from safemargin.core.jax_library import load_jax, on_processor
from safemargin.environments.functional.keys import StepKeys, key_of_seed
from safemargin.environments.functional.programs import Programs
from safemargin.environments.functional.protocol import FunctionalEnvironment
from safemargin.environments.functional.purity import uses_key
from safemargin.environments.objects import register_state

register_state(StepKeys, save=StepKeys.save, restore=StepKeys.restore, reseed=StepKeys.reseed)


class FunctionalGym(gym.Env[Any, Any]):
    """Steps a functional environment on the processor; a snapshot copies the state's arrays."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 — Gymnasium's
    render_mode = "rgb_array"

    def __init__(self, functional: FunctionalEnvironment) -> None:
        jax = load_jax(f"environment {functional.name!r}")
        self.functional = functional
        self.observation_space = functional.observation_space
        self.action_space = functional.action_space
        self._programs = Programs(functional)
        self._jax = jax
        self._structure: Any = None
        self._leaves: list[Any] = []
        self._steps = 0
        random = functional.deterministic is not True and uses_key(functional)
        self._keys = StepKeys() if random else None
        self.spec = EnvSpec(re.sub(r"[^\w:.-]", "-", functional.name))

    @property
    def random(self) -> bool:
        """Whether steps draw random numbers."""
        return self._keys is not None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31 - 1))
        key = key_of_seed(seed)
        if self._keys is not None:
            self._keys.restore([key, 0])
        self._steps = 0
        with on_processor():
            state, observation = self._programs.reset(key)
            self._keep(state)
            return self._plain(observation), self._info(state)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        key = np.zeros(2, np.uint32) if self._keys is None else self._keys.key
        given = np.int32(action) if isinstance(self.action_space, gym.spaces.Discrete) else action
        with on_processor():
            state, observation, reward, terminated, truncated = self._programs.step(
                self.state, given, key, np.int32(self._steps)
            )
            self._keep(state)
            self._steps += 1
            if self._keys is not None:
                self._keys.drawn += 1
            return (
                self._plain(observation),
                float(np.float32(reward)),
                bool(terminated),
                bool(truncated),
                self._info(state),
            )

    def render(self) -> Any:
        with on_processor():
            return self.functional.render(self.state)

    @property
    def state(self) -> Any:
        """The state as the environment's functions take it."""
        leaves = [
            self._jax.random.wrap_key_data(leaf.words, impl=leaf.implementation)
            if isinstance(leaf, _KeyData)
            else leaf
            for leaf in self._leaves
        ]
        return self._jax.tree.unflatten(self._structure, leaves)

    def _keep(self, state: Any) -> None:
        leaves, self._structure = self._jax.tree.flatten(state)
        self._leaves = [self._as_array(leaf) for leaf in leaves]

    def _as_array(self, leaf: Any) -> Any:
        jax = self._jax
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _KeyData(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
        return np.array(leaf)

    def _plain(self, observation: Any) -> Any:
        return self._jax.tree.map(np.array, observation)

    def _info(self, state: Any) -> dict[str, Any]:
        legal = self._programs.legal(state)
        return {} if legal is None else {"action_mask": np.array(legal, dtype=bool)}


class _KeyData:
    """A random key that the state holds."""

    def __init__(self, words: Any, implementation: str) -> None:
        self.words, self.implementation = words, implementation
