"""A trained mask blinds the steps that do not matter, and leaves the others to the agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.monitor.mask import learn_mask

STEPS = 10


class Gate(gym.Env[np.ndarray, int]):
    """Nothing matters but step 5, where any action but the first ends it without a reward."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        missed = self.at == 5 and int(action) != 0
        self.at += 1
        over = missed or self.at == STEPS
        seen = np.array([self.at == 5], np.float32)
        return seen, float(over and not missed), over, False, {}


def sure_at_the_gate(rows: np.ndarray) -> np.ndarray:
    scores = np.zeros((len(rows), 8), np.float32)
    scores[:, 0] = 0.1 + 3 * rows[:, 0]
    return scores


def test_the_gate_is_left_to_the_agent(tmp_path: Any) -> None:
    policy = sm.load_policy(sure_at_the_gate, kind="q")
    with sm.Study.create(tmp_path / "s", Gate, policy, {"n_values": (1,), "gamma": 0.9}) as study:
        with pytest.raises(StudyIncomplete, match="has no episode yet; collect it first"):
            learn_mask(study)
        with pytest.raises(InvalidInput, match="at least 1 round and 1 game, got 0 and 2"):
            learn_mask(study, rounds=0)
        study.collect(natural=2, spread=0, workers=1)
        found = learn_mask(study, rounds=25, games=3)
        (trace, _) = study.store.proxy_traces("learned-mask")
    assert found.proxy == "learned-mask"
    assert found.own == 1
    assert found.loss < 0.35 < found.by_lot
    assert found.blinded > 0.5
    assert int(np.argmax(trace.values)) == 5
