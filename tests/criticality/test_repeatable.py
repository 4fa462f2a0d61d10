"""Repeatable regret: by hand, and in worlds where all of regret is luck, or none of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.luck import GAMMA, STEPS, Luck, first

import safemargin as sm
from safemargin.core.records import EpisodeKey
from safemargin.criticality.batch import action_returns
from safemargin.criticality.repeatable import jittered, jittered_returns, repeatable
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput


def measured(gain: float, luck: float, decisions: int = 60) -> tuple[np.ndarray, ...]:
    """The regret, the judged and the chosen worth of first actions, each [decisions]."""
    settings = sm.Settings(gamma=GAMMA, n_values=(1,), horizon_error=GAMMA ** (STEPS - 0.5))
    runner = Runner(
        make_simulator(Luck(gain, luck)), sm.load_policy(first, kind="logits"), settings
    )
    slipping, found = jittered(runner, 0.2), []
    for seed in range(decisions):
        episode = runner.run_episode(EpisodeKey("natural", seed), seed=seed)
        point = runner.go_to(episode, 0)
        plain = action_returns(runner, point)
        returns = jittered_returns(slipping, point, 6, (seed,))
        found.append(repeatable(plain, returns, 0))
    return tuple(
        np.array([getattr(each, name) for each in found]) for name in ("regret", "judged", "chosen")
    )


def test_luck_is_regret_but_not_repeatable() -> None:
    """E max(U₁, U₂, U₃) − U₁ of three uniform numbers in [−a, a] is a / 2."""
    regret, judged, chosen = measured(0.0, 20.0)
    late = 20.0 * GAMMA ** (STEPS - 1)
    assert regret.mean() == pytest.approx(late / 2, rel=0.35)
    for worth in (judged, chosen):
        error = worth.std(ddof=1) / np.sqrt(len(worth))
        assert abs(worth.mean()) < 3.5 * error < late
        assert worth.mean() < 0.5 * regret.mean()


def test_what_no_slip_can_undo_is_repeatable() -> None:
    regret, judged, chosen = measured(1.0, 0.0, decisions=3)
    for worth in (regret, judged, chosen):
        assert worth == pytest.approx(np.ones(3))


def test_all_first_actions_meet_the_same_slips() -> None:
    """Without luck at the end, the futures of action 0 and 2 are alike to the last bit."""
    settings = sm.Settings(gamma=GAMMA, n_values=(1,), horizon_error=GAMMA ** (STEPS - 0.5))
    runner = Runner(make_simulator(Drift()), sm.load_policy(first, kind="logits"), settings)
    episode = runner.run_episode(EpisodeKey("natural", 0), seed=0)
    returns = jittered_returns(jittered(runner, 0.3), runner.go_to(episode, 0), 8, (0,))
    assert returns.shape == (8, 3)
    assert np.array_equal(returns[:, 0], returns[:, 2])
    assert len(np.unique(returns[:, 0])) > 4


class Drift(Luck):
    """Every step after the first pays its action: returns show which slips there were."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + float(action) * (len(self.taken) > 1), *rest


def test_a_decision_by_hand() -> None:
    plain = np.array([0.0, 3.0, 1.0])
    returns = np.array([[0.0, 2.0, 0.0], [1.0, 1.0, 5.0], [0.0, 4.0, 0.0], [1.0, 1.0, 3.0]])
    found = repeatable(plain, returns, 0)
    assert found.regret == 3.0
    assert found.judged == (2 + 0 + 4 + 0) / 4
    # The even half takes action 1 (worth 0 in the odd half), the odd one action 2 (worth 0).
    assert found.chosen == 0.0
    alone = repeatable(np.array([2.0, 1.0, 2.0]), None, 2)
    assert (alone.regret, alone.judged, alone.chosen) == (0.0, 0.0, None)
    assert repeatable(plain, None, 0).judged is None


def test_refusals() -> None:
    settings = sm.Settings(gamma=0.5, n_values=(1,))
    policy = sm.load_policy(first, kind="logits")
    runner = Runner(make_simulator(Luck(0, 0)), policy, settings)
    with pytest.raises(InvalidInput, match="slips with a probability between 0 and 1, got 1"):
        jittered(runner, 1.0)
    with pytest.raises(InvalidInput, match="take a policy that acts greedily"):
        jittered(jittered(runner, 0.1), 0.1)
    with pytest.raises(InvalidInput, match="2 jitters or more, got 1"):
        repeatable(np.zeros(3), np.zeros((1, 3)), 0)
    still = sm.load_policy(lambda o: np.zeros((len(o), 1), np.float32), kind="actions")
    pull = Runner(make_simulator(gym.make("Pendulum-v1")), still, settings)
    pull.simulator.reset(0)
    point = pull.go_to(pull.run_episode(EpisodeKey("natural", 0), seed=0), 0)
    with pytest.raises(InvalidInput, match="only discrete actions can all be tried"):
        jittered_returns(jittered(pull, 0.1), point, 2, (0,))
