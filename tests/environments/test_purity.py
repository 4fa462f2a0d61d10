"""The doctor's proof that an environment of pure functions is one."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from safemargin.environments.functional import FunctionalEnvironment
from safemargin.environments.functional.purity import check_pure
from safemargin.errors import EnvironmentFault

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")
jnp = jax.numpy


class Drift(NamedTuple):
    steps: Any
    position: Any


class Walk(FunctionalEnvironment):
    """9 steps to the left or to the right, from anywhere near 0."""

    observation_space = gym.spaces.Box(-20.0, 20.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: Any) -> Any:
        start = Drift(jnp.int32(0), jax.random.uniform(key))
        return start, start.position[None]

    def step(self, state: Any, action: Any, key: Any) -> Any:
        after = Drift(state.steps + 1, state.position + 2.0 * action - 1.0)
        over = after.steps >= 9
        return after, after.position[None], jnp.float32(1), over, jnp.bool_(False)


class Anew(Walk):
    """As libraries train with: its last step returns the state of the next episode."""

    def step(self, state: Any, action: Any, key: Any) -> Any:
        after, seen, reward, over, truncated = super().step(state, action, key)
        fresh = self.reset(key)
        after, seen = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (after, seen))
        return after, seen, reward, over, truncated


def test_a_world_whose_step_is_pure_is_accepted() -> None:
    assert "200 steps came out the same twice" in check_pure(Walk(), 1)


def test_a_world_that_begins_the_next_episode_is_found_out_where_no_two_starts_are_alike() -> None:
    world = Anew()
    world.name = "Anew"
    with pytest.raises(
        EnvironmentFault,
        match="Anew: it resets itself: all that is the same at every start .* let step return",
    ):
        check_pure(world, 1)
