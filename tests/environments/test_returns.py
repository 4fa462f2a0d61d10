"""The mean return that the doctor shows, so that users notice an agent that is not theirs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.worlds import TableWorld, always_first, chain
from scipy.stats import t as student

from safemargin.core.settings import Settings
from safemargin.environments import make_simulator
from safemargin.environments.doctor.returns import PlayedReturns, play_returns
from safemargin.policies import load_policy


def test_whole_episodes_are_summed_without_a_discount() -> None:
    world = TableWorld(chain(12))
    policy = load_policy(always_first, kind="logits")
    world.reset(seed=0)
    expected, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, _ = world.step(0)
        expected += reward
        ended = terminated or truncated
    played = play_returns(make_simulator(TableWorld(chain(12))), policy, Settings(), episodes=3)
    assert expected != 0
    assert played.returns == (expected, expected, expected)
    assert played.lowest_expected is None
    assert str(played) == f"mean return over 3 episodes: {expected:.4g}"


def test_episodes_that_do_not_end_are_not_counted() -> None:
    policy = load_policy(always_first, kind="logits")
    played = play_returns(make_simulator(TableWorld(chain(12))), policy, Settings(), most_steps=5)
    assert played.returns == ()
    assert "no episode ended within" in str(played)
    assert not played.unlike_training


def test_the_limit_is_that_of_a_mean_of_new_episodes() -> None:
    trained = (700.0, 720.0, 750.0, 730.0)
    played = PlayedReturns((375.0, 380.0), trained)
    width = np.std(trained, ddof=1) * np.sqrt(1 / 4 + 1 / 2)
    assert played.lowest_expected == pytest.approx(725.0 - student.ppf(0.95, 3) * width)
    assert played.unlike_training
    assert str(played).startswith(
        "mean return over 2 episodes: 377.5; the model file remembers 725 from its last 4 "
        "training episodes, and at least 682.6 was expected: this may not be the agent"
    )
    assert not PlayedReturns((720.0, 725.0), trained).unlike_training


def test_the_limit_is_kept_by_the_agent_that_was_trained() -> None:
    generator = np.random.default_rng(5)
    below = sum(
        PlayedReturns(tuple(row[:5]), tuple(row[5:])).unlike_training
        for row in generator.normal(100.0, 20.0, size=(4000, 105))
    )
    assert 0.04 < below / 4000 < 0.06
