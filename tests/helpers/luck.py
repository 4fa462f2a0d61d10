"""A world in which the best of several futures is mostly luck."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

GAMMA, STEPS = 0.9, 30


class Luck(gym.Env[np.ndarray, int]):
    """The first action pays `gain` if it is 1. The last step pays a number that hashes all actions.

    So the best of all first actions is lucky at the end, but what luck it has is another one as
    soon as a single later action is another: only `gain` is repeatable.
    """

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, gain: float, luck: float) -> None:
        self.gain, self.luck = gain, luck

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = (0,) * 0
        self.start = int(self.np_random.integers(2**31))
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.taken = (*self.taken, int(action))
        ended = len(self.taken) == STEPS
        reward = self.gain * (action == 1) if len(self.taken) == 1 else 0.0
        if ended:  # a number between −1 and 1, and 0 on average
            rng = np.random.default_rng([self.start, *self.taken])
            reward = self.luck * float(rng.uniform(-1, 1))
        return np.full(1, len(self.taken), np.float32), reward, ended, False, {}


def first(observations: np.ndarray) -> np.ndarray:
    return np.tile(np.array([1.0, 0.0, 0.0], np.float32), (len(observations), 1))
