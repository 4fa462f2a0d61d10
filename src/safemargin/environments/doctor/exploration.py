"""How the doctor explores an environment: the policy's actions mixed with random ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.seeding import Purpose, stream
from safemargin.core.settings import Settings
from safemargin.environments.simulator import Simulator
from safemargin.policies.actions import PolicyActions, RandomActions
from safemargin.policies.base import Memory, Policy, batch_of
from safemargin.policies.batching import ask


class Explorer:
    """Mixes the policy's greedy actions with random ones; without a policy, all are random.

    With `random_share` 0 and no policy, the action is always the same.
    """

    def __init__(
        self, env: gym.Env[Any, Any], policy: Policy | None, seed: int, *, random_share: float
    ) -> None:
        self.random_actions = RandomActions(env.action_space)
        self.memory: Memory = None
        self._generator = stream(seed, Purpose.DOCTOR, 1)
        self._policy = policy
        self._random_share = random_share
        if policy is not None:
            self._greedy = PolicyActions(env.action_space, policy.kind, Settings())

    def __call__(self, simulator: Simulator) -> Any:
        policy, mask = self._policy, simulator.mask
        if simulator.steps == 0:
            self.begin()
        width = self.random_actions.width
        if policy is None and self._random_share == 0:
            return self.random_actions(np.zeros(width), mask)
        if policy is not None:
            observations = batch_of([simulator.observation])
            scores, self.memory = ask(policy, observations, self.memory)
            if self._generator.random() >= self._random_share:
                return self._greedy(scores[0], None, mask if policy.uses_mask else None)
        return self.random_actions(self._generator.random(width), mask)

    def begin(self) -> None:
        """Reset a recurrent policy's memory."""
        self.memory = None if self._policy is None else self._policy.initial_memory(1)
