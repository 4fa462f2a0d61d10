"""Margins during an evaluation by Stable-Baselines3."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.margins import margins
from helpers.worlds import Lives

from safemargin.errors import StudyMismatch
from safemargin.margins.natural_proxies import summarise
from safemargin.monitor.evaluation_watch import EvaluationWatch
from safemargin.monitor.monitor import Monitor

stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.monitor import Monitor as Recorder  # noqa: E402


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
    # At this tolerance a margin is 1 at most, so every episode begins with a call.
    table = margins(policy={"kind": "q"}, natural_proxies=summarise(np.linspace(0, 3, 100)))
    watch = EvaluationWatch(Monitor(table, tolerance=0.0, call_at=4), model)
    lengths = evaluate(model, watch, environments, 5)
    assert watch.called_steps == watch.steps == sum(lengths)
    assert watch.lowest_margin == 1
    shares = [(5 + index) // environments for index in range(environments)]
    assert sorted((call.environment, call.episode, call.step) for call in watch.calls) == [
        (index, episode, 0) for index, share in enumerate(shares) for episode in range(share)
    ]
    assert watch.monitor.drift.episodes == 5
    again = evaluate(model, watch, environments, 2)
    assert watch.steps == sum(lengths) + sum(again)
    assert watch.monitor.drift.episodes == 7


def test_nothing_is_called_where_all_is_affordable(model: Any) -> None:
    watch = EvaluationWatch(Monitor(margins(policy={"kind": "q"}), tolerance=1e9), model)
    lengths = evaluate(model, watch, 3, 5)
    assert watch.steps == sum(lengths) > 0
    assert (watch.calls, watch.called_steps) == ([], 0)


class Thirds(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode after each five steps of CartPole, as if a life had been lost."""

    over = True
    steps = 0

    def reset(self, **options: Any) -> Any:
        self.steps = 0
        if not self.over:
            return self.seen, {}
        self.over = False
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        self.seen, reward, self.over, truncated, info = self.env.step(action)
        self.steps += 1
        return self.seen, reward, self.over or self.steps == 5, truncated, info


@pytest.mark.parametrize(
    ("make", "counted"),
    [
        (lambda: Thirds(Recorder(gym.make("CartPole-v1"))), 4),  # what the evaluation counts
        (lambda: Recorder(Lives(gym.make("CartPole-v1"), lives=3)), 0),  # of which it counts each
    ],
)
def test_lives_are_no_games(model: Any, make: Any, counted: int) -> None:
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    table = margins(policy={"kind": "q"}, natural_proxies=summarise(np.linspace(0, 3, 100)))
    watch = EvaluationWatch(Monitor(table, tolerance=0.0, call_at=4), model)
    _, lengths = evaluate_policy(
        model, DummyVecEnv([make] * 2), 4, callback=watch, return_episode_rewards=True
    )
    assert watch.steps == sum(lengths)
    assert watch.monitor.drift.episodes == counted
    assert sorted((call.environment, call.episode) for call in watch.calls) == [
        (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip


def test_margins_of_another_model_are_refused(model: Any) -> None:
    with pytest.raises(StudyMismatch, match="the margins were made for another policy"):
        EvaluationWatch(Monitor(margins(), tolerance=1.0), model)


def test_a_model_under_vec_normalize_is_watched_without_a_warning() -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("CartPole-v1", 1, seed=0))
    model = stable_baselines3.DQN("MlpPolicy", env, buffer_size=1, device="cpu")
    table = margins(policy={"kind": "q"}, natural_proxies=summarise(np.linspace(0, 3, 100)))
    # Warnings are errors here.
    watch = EvaluationWatch(Monitor(table, tolerance=1.0, call_at=4), model)
    evaluate_policy(model, env, 1, callback=watch)
    assert watch.steps > 0
