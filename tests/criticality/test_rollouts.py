"""Episodes, points and trials in worlds small enough to work out on paper."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.runners import Counting, runner_in
from helpers.worlds import TableWorld, always_first, branching, chain

from safemargin.core.records import EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.environments.doctor.exploration import Explorer
from safemargin.errors import EnvironmentFault, PolicyFault
from safemargin.policies import load_policy
from safemargin.policies.base import Memory, Policy, batch_of
from safemargin.policies.proxies import Proxy

KEY = EpisodeKey("natural", 0)


def test_an_episode_is_recorded_step_by_step() -> None:
    episode = runner_in(TableWorld(chain(5))).run_episode(KEY)
    assert list(episode.actions) == [0] * 5
    assert list(episode.rewards) == [1.0] * 5
    # always_first prefers action 0 by 1 + state: the range of log-probabilities is just that.
    assert list(episode.proxies["log_prob_range"]) == [1, 2, 3, 4, 5]
    assert episode.scores.shape == (5, 2)
    assert (episode.terminated, episode.truncated, episode.cut) == (True, False, False)


def test_an_episode_without_end_is_cut() -> None:
    endless = [[[one] for one in row[0]] * 2 for row in chain(5)]
    endless[4] = endless[3]
    episode = runner_in(TableWorld(endless), max_episode_steps=12).run_episode(KEY)
    assert episode.steps == 12
    assert episode.cut


def test_an_opening_is_random_recorded_and_replayed() -> None:
    world = branching(40)
    openings = set()
    for index in range(40):
        runner = runner_in(TableWorld(world), opening=6)
        episode = runner.run_episode(EpisodeKey("natural", index))
        assert list(episode.actions[episode.opening :]) == [0] * (40 - episode.opening)
        openings.add(episode.opening)
        point = runner.go_to(episode, 10)
        assert runner.repeats(point, episode, 10)
    assert openings == set(range(7))


def test_discounting_is_exactly_rounded() -> None:
    runner = runner_in(TableWorld(chain(5)), gamma=0.5, horizon_error=0.05, n_values=(1,))  # 5
    assert runner.returns([(r,) for r in (1, 2, 4, 8, 16, 1000)])[0] == 1 + 1 + 1 + 1 + 1
    assert runner.returns([]) == (0,)
    # 1e16 + 1 − 1e16: adding one after another would lose the 1
    assert runner.returns([(1e16,), (2.0,), (-4e16,)]) == (1.0,)


def test_a_world_that_does_not_repeat_itself_is_noticed() -> None:
    class Forgetful(TableWorld):
        resets = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            Forgetful.resets += 1
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            return (observation, reward + Forgetful.resets, *rest)

    runner = runner_in(Forgetful(chain(9)))
    episode = runner.run_episode(KEY)
    with pytest.raises(EnvironmentFault, match="episode natural 0 .* at step 0"):
        runner.go_to(episode, 4)


def test_a_recurrent_policy_remembers_through_points_and_perturbations() -> None:
    runner = runner_in(TableWorld(branching(40)), Counting())
    episode = runner.run_episode(KEY)
    assert list(episode.actions[:6]) == [0, 0, 1, 0, 0, 1]
    for step in range(0, 30, 7):
        point = runner.go_to(episode, step)
        assert runner.repeats(point, episode, step)


class Custom(Policy):
    """Returns a given answer from the third state of a chain on."""

    kind = "q"
    identity = description = "custom"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def scores(self, observations: Any, memory: Memory = None) -> Any:
        if np.argmax(observations, axis=1).max() < 2:
            return np.tile([1.0, 0.1], (len(observations), 1)), None
        return self.answer()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: (np.array([[1.0, np.nan]]), None), r"finite numbers, got \[1.0, nan\]"),
        (lambda: (np.zeros(2), None), r"for a batch of 1, got shape \[2\]"),
        (
            lambda: np.zeros((1, 2)),
            r"custom: scores\(\) raised ValueError: not enough values",
        ),
        (lambda: {}["weights"], r"policy custom: scores\(\) raised KeyError: 'weights'"),
    ],
)
def test_the_scores_of_a_custom_policy_are_checked(answer: Any, message: str) -> None:
    runner = runner_in(TableWorld(chain(5)), Custom(answer))
    with pytest.raises(PolicyFault, match=message):
        runner.run_episode(KEY)
    with pytest.raises(PolicyFault, match=message):
        runner.scores([np.eye(6)[4]], [None])
    explorer = Explorer(runner.simulator.env, runner.policy, 0, random_share=0)
    with pytest.raises(PolicyFault, match=message):
        explorer(runner.simulator)  # where the episode broke off


def test_the_scores_of_a_custom_policy_are_recorded_as_float32() -> None:
    runner = runner_in(TableWorld(chain(5)), Custom(lambda: ([[1.0, 0.1]], None)))
    episode = runner.run_episode(KEY)
    assert episode.scores.dtype == np.float32
    assert runner.repeats(runner.go_to(episode, 2), episode, 2)


def test_custom_proxies_see_history_and_n() -> None:
    def states_seen(scores: np.ndarray, history: list[np.ndarray], n: int | None) -> float:
        return sum(1 + float(np.argmax(observation)) for observation in history) + (n or 0)

    policy = load_policy(always_first, kind="logits")
    proxies = (
        Proxy("past", states_seen, ("logits",), history=3),
        Proxy("future", states_seen, ("logits",), history=1, per_n=True),
    )
    settings = Settings(n_values=(1, 4))
    runner = Runner(make_simulator(TableWorld(chain(5))), policy, settings, proxies)
    episode = runner.run_episode(KEY)
    assert list(episode.proxies["past"]) == [1, 3, 6, 9, 12]  # 1, 1+2, 1+2+3, 2+3+4, 3+4+5
    assert episode.proxies["future"].tolist() == [[s + 2, s + 5] for s in range(5)]


def test_a_batch_of_one() -> None:
    assert np.shape(batch_of([3])) == (1,)
    assert batch_of([{"a": np.zeros(2)}])["a"].shape == (1, 2)  # type: ignore[index]


@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_an_action_without_dimensions_is_replayed_as_it_was_taken(kind: type) -> None:
    class Dial(TableWorld):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(0)
            return (observation, float(action), *rest)

    def turn(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), 1), 2.75)

    policy = load_policy(turn, kind="actions")
    world = Dial(chain(5))
    world.action_space = gym.spaces.Box(-5, 5, (), kind)
    runner = Runner(make_simulator(world), policy, Settings())
    episode = runner.run_episode(KEY)
    assert set(episode.rewards) == {kind(2.75)}
    assert runner.repeats(runner.go_to(episode, 2), episode, 2)
