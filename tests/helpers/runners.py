"""Runners in small worlds, and a recurrent policy to run."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from helpers.worlds import always_first
from safemargin.core.settings import Settings
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.policies import load_policy
from safemargin.policies.base import Memory, Policy
from safemargin.policies.proxies import proxies_for


def runner_in(env: gym.Env[Any, Any], policy: Any = always_first, **settings: Any) -> Runner:
    """A runner in `env`; a plain function is taken to return logits."""
    loaded = load_policy(policy, kind=None if isinstance(policy, Policy) else "logits")
    return Runner(make_simulator(env), loaded, Settings(**settings), proxies_for(loaded.kind))


class Counting(Policy):
    """A recurrent policy that takes action 1 at every third step of the episode."""

    kind = "logits"
    identity = "counting"
    description = "counting"

    def initial_memory(self, batch: int) -> Memory:
        return (np.zeros((batch, 1), np.int64),)

    def scores(self, observations: Any, memory: Memory = None) -> Any:
        assert memory is not None
        lived = memory[0] + 1
        turn = (lived[:, 0] % 3 == 0).astype(np.float32)
        return np.stack([1 - turn, turn], axis=1), (lived,)
