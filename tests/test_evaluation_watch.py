"""Margins beside an evaluation by Stable-Baselines3."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from test_monitor import margins

from safemargin.errors import StudyMismatch
from safemargin.evaluation_watch import EvaluationWatch
from safemargin.monitor import Monitor
from safemargin.natural_proxies import summarise

stable_baselines3 = pytest.importorskip("stable_baselines3")


@pytest.fixture(scope="module")
def model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stable_baselines3.DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu")


def evaluate(model: Any, watch: EvaluationWatch, environments: int, episodes: int) -> list[int]:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    env = make_vec_env("CartPole-v1", environments, seed=0)
    _, lengths = evaluate_policy(model, env, episodes, callback=watch, return_episode_rewards=True)
    env.close()
    return list(lengths)


@pytest.mark.parametrize("environments", [1, 3])
def test_every_step_of_an_evaluation_is_watched(model: Any, environments: int) -> None:
    table = margins(policy={"kind": "q"}, natural_proxies=summarise(np.linspace(0, 3, 100)))
    watch = EvaluationWatch(Monitor(table, tolerance=1.0, call_at=4), model)
    lengths = evaluate(model, watch, environments, 5)
    assert watch.steps == sum(lengths)
    assert watch.lowest_margin is not None
    assert 0 <= watch.called_steps <= watch.steps
    assert len(watch.calls) <= watch.called_steps
    for call in watch.calls:
        assert call.environment < environments
        assert call.margin < 4
    seen = watch.monitor.drift.episodes
    assert seen >= 3
    again = evaluate(model, watch, environments, 2)
    assert watch.steps == sum(lengths) + sum(again)


def test_margins_of_another_model_are_refused(model: Any) -> None:
    with pytest.raises(StudyMismatch, match="the margins were made for another policy"):
        EvaluationWatch(Monitor(margins(), tolerance=1.0), model)
