"""Worlds of brax, among them those that MJX computes (`backend="mjx"`): continuous actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.jax_library import load_jax
from safemargin.environments.functional.adapters.libraries import library
from safemargin.environments.functional.adapters.shapes import like, rekeyed, shapes_of, some_key
from safemargin.environments.functional.protocol import FunctionalEnvironment, Key, State
from safemargin.errors import InvalidInput, did_you_mean, errors_as

EPISODE_LENGTH = 1000


class BraxWorld(FunctionalEnvironment):
    """A brax environment as it is registered, without the wrappers that `brax.envs.create` adds.

    The state is (brax's state, steps so far); actions lie in [−1, 1].
    """

    def __init__(self, world: Any, text: str, episode_length: int) -> None:
        self.world, self.episode_length = world, episode_length
        self.name = text.rpartition(":")[2]
        self._blank = shapes_of(world.reset, some_key())
        seen = self._blank.obs
        if not hasattr(seen, "shape"):
            raise InvalidInput(
                f"environment {text!r}: it returns several observations ({', '.join(seen)}); an "
                "environment of one array is needed"
            )
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, seen.shape, seen.dtype)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (int(world.action_size),), np.float32)
        # Its `step` takes no key; what it draws comes from one in the state, if there is any.
        self.deterministic = rekeyed(world.reset(some_key()), some_key())[1] == 0

    def reset(self, key: Key) -> tuple[State, Any]:
        state = like(self._blank, self.world.reset(key))
        return (state, load_jax("brax").numpy.int32(0)), state.obs

    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        before, steps = state
        after = like(self._blank, self.world.step(rekeyed(before, key)[0], action))
        terminated, truncated = after.done > 0, steps + 1 >= self.episode_length
        return (after, steps + 1), after.obs, after.reward, terminated, truncated & ~terminated


def make(name: str, *, episode_length: int = EPISODE_LENGTH, **arguments: Any) -> BraxWorld:
    """Make a world by its name; the arguments are those of its class, e.g. backend="mjx"."""
    text = f"jax:brax:{name}"
    envs = library("brax", "brax.envs", text)
    names = list(envs._envs)
    if name not in names:
        raise InvalidInput(
            f"environment {text!r}: brax has no such world; {did_you_mean(name, names)}"
        )
    with errors_as(InvalidInput, f"environment {text!r} could not be made with {arguments}:"):
        world = envs.get_environment(name, **arguments)
    return BraxWorld(world, text, episode_length)
