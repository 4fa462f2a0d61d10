"""State that only mistakes reach, kept where no snapshot finds it: a module's global."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm

ALARM = [False]
STEPS, DUE, PENALTY = 40, 30, 10.0


class Forgetful(gym.Env[Any, Any]):
    """After three mistakes in a row, kept in a global, the next mistake costs a penalty, late."""

    observation_space = gym.spaces.Box(0, STEPS, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = self.row = 0
        self.owed = ALARM[0] = False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.row = self.row + 1 if action else 0
        self.owed |= bool(action) and ALARM[0]
        ALARM[0] |= self.row == 3
        reward = -PENALTY * self.owed if self.t == DUE else 1.0
        return np.full(1, self.t, np.float32), reward, self.t == STEPS, False, {}


def always_right(observations: Any) -> Any:
    return np.tile([1.0, 0.0], (len(observations), 1))


def is_fined(actions: tuple[int, ...]) -> bool:
    """Whether three mistakes in a row are followed by a fourth."""
    return any(all(actions[i : i + 3]) and any(actions[i + 3 :]) for i in range(len(actions) - 2))


def truth(step: int, n: int, gamma: float) -> float:
    fined = sum(map(is_fined, itertools.product((0, 1), repeat=n))) / 2**n
    return float(fined * (PENALTY) * gamma ** (DUE - 1 - step))


@pytest.mark.filterwarnings("ignore::safemargin.criticality.estimation.DiagnosisCorrected")
@pytest.mark.parametrize("seed", range(20))
def test_a_single_moment_is_measured_right(seed: int) -> None:
    settings = sm.Settings(trial_plan="fixed", trials=64, seed=seed)
    found = sm.true_criticality(
        Forgetful(), always_right, step=seed, n=[1, 2, 4, 6], settings=settings, scores="logits"
    )
    assert [estimate.n for estimate in found] == [1, 2, 4, 6]
    for estimate in found:
        assert estimate.exact
        expected = truth(seed, estimate.n, settings.gamma)
        assert estimate.mean == pytest.approx(expected, abs=1e-9), estimate.n
