"""Box2D's worlds: replay, in physics that begin anew with each episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.environments import make_simulator, same
from safemargin.environments.box2d import FreshWorld, with_fresh_world

pytestmark = pytest.mark.filterwarnings("ignore")  # Box2D's own, while it is imported


def episode(env: gym.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    actions = np.random.default_rng(seed).uniform(-1, 1, (steps, 4)).astype(np.float32)
    seen = [env.reset(seed=seed)[0]]
    return seen + [env.step(action)[0] for action in actions]


def test_an_episode_does_not_depend_on_those_before_it() -> None:
    pytest.importorskip("Box2D")
    used, new = gym.make("BipedalWalker-v3"), gym.make("BipedalWalker-v3")
    first = episode(new, 2, 100)
    fresh = with_fresh_world(used)
    assert isinstance(fresh, FreshWorld)
    assert with_fresh_world(fresh) is fresh
    for before in (0, 1):
        episode(fresh, before, 100)
    assert same(episode(fresh, 2, 100), first)
    episode(new, 0, 100), episode(new, 1, 100)
    assert not same(episode(new, 2, 100), first)  # why it is needed

    simulator = make_simulator(gym.make("BipedalWalker-v3"), way="replay")
    simulator.reset(4)
    for _ in range(40):
        simulator.step(np.ones(4, np.float32))
    saved, digest = simulator.save(), simulator.digest()
    after = simulator.step(np.zeros(4, np.float32)).observation
    simulator.reset(5)
    simulator.restore(saved)
    assert simulator.digest() == digest
    assert same(simulator.step(np.zeros(4, np.float32)).observation, after)
    assert simulator.digest() != digest


def test_other_environments_stay_as_they_are() -> None:
    env = gym.make("CartPole-v1")
    assert with_fresh_world(env) is env
