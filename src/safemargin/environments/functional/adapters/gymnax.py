"""Environments of gymnax, without the new episode that its `step` begins by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from safemargin.environments.functional.adapters.libraries import library
from safemargin.environments.functional.adapters.shapes import (
    like,
    settings_and_rest,
    shapes_of,
    some_key,
    space_of,
)
from safemargin.environments.functional.protocol import FunctionalEnvironment, Key, State
from safemargin.errors import InvalidInput, did_you_mean, errors_as


class GymnaxWorld(FunctionalEnvironment):
    """Any environment whose `step_env(key, state, action, params)` is that of gymnax."""

    def __init__(self, world: Any, params: Any, text: str) -> None:
        self.world, self.params = world, params
        self.name = text.rpartition(":")[2]
        self.observation_space = space_of(world.observation_space(params), text)
        self.action_space = space_of(world.action_space(params), text)
        _, self._blank = shapes_of(lambda key: world.reset_env(key, params), some_key())

    def reset(self, key: Key) -> tuple[State, Any]:
        observation, state = self.world.reset_env(key, self.params)
        return like(self._blank, state), self._seen(observation)

    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        observation, after, reward, terminated, *_ = self.world.step_env(
            key, state, action, self.params
        )
        after = like(self._blank, after)
        truncated = self.truncated(after)
        return (
            after,
            self._seen(observation),
            like(np.float32(0), reward),
            like(np.bool_(0), terminated),
            like(np.bool_(0), truncated),
        )

    def truncated(self, state: State) -> Any:
        """Whether the time limit is reached, which `step_env` does not say."""
        return self.world.is_truncated(state, self.params)

    def _seen(self, observation: Any) -> Any:
        space: Any = self.observation_space
        return like(np.zeros(space.shape or (), space.dtype), observation)


def make(name: str, **arguments: Any) -> GymnaxWorld:
    """Make an environment by its id; arguments are its parameters or those of its class."""
    text = f"jax:gymnax:{name}"
    gymnax = library("gymnax", "gymnax", text)
    if name not in gymnax.registered_envs:
        raise InvalidInput(
            f"environment {text!r}: gymnax has no such environment; "
            f"{did_you_mean(name, gymnax.registered_envs)}"
        )
    with errors_as(InvalidInput, f"environment {text!r}: {arguments} do not fit:"):
        settings, rest = settings_and_rest(gymnax.make(name)[1], arguments)
        world, params = gymnax.make(name, **rest)
        params = params.replace(**settings)
    if not hasattr(world, "is_truncated"):
        raise InvalidInput(
            f"environment {text!r}: gymnax 1.0 or later is needed, which tells an end from a time "
            "limit: pip install 'safemargin[gymnax]'"
        )
    return GymnaxWorld(world, params, text)
