"""Algorithm 1 against worlds whose criticality is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.worlds import (
    Masked,
    Outcome,
    TableWorld,
    always_first,
    branching,
    chain,
    exact_criticality,
    lean,
    make_branching,
)

import safemargin as sm
from safemargin.core.records import EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.one_moment import DiagnosisCorrected
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.environments.doctor.returns import UnlikeTraining
from safemargin.errors import EnvironmentFault, InvalidInput
from safemargin.policies import load_policy

POLICY = load_policy(always_first, kind="logits")


def test_the_chain_in_closed_form() -> None:
    # Action 1 ends the walk, so n random actions let it live with probability 2^-n:
    # c(t, n) = Σ_k γ^k (1 − 2^−min(k+1, n)) over the steps that are left.
    settings = Settings(trial_plan="paper", n_values=(1, 2, 4), sampling_error=1.5)
    step, gamma = 20, settings.gamma
    found = sm.true_criticality(
        TableWorld(chain(60)), POLICY, step=step, n=[1, 2, 4], settings=settings
    )
    left = np.arange(60 - step)
    assert [estimate.n for estimate in found] == [1, 2, 4]
    for estimate in found:
        alive = 0.5 ** np.minimum(left + 1, estimate.n)
        exact = float((gamma**left * (1 - alive)).sum())
        assert exact == pytest.approx(
            exact_criticality(chain(60), state=step, n=estimate.n, gamma=gamma, horizon=459)
        )
        assert estimate.half_width <= 1.5
        # Two and a half half-widths of 95 % are five deviations: not once in a million runs.
        assert abs(estimate.mean - exact) <= 2.5 * estimate.half_width
        assert estimate.unperturbed == pytest.approx((gamma**left).sum(), abs=1e-12)
        assert not estimate.capped


@pytest.mark.parametrize("step", [0, 7, 22])
def test_the_branching_world(step: int) -> None:
    table = branching(40)
    settings = Settings(trial_plan="paper", sampling_error=0.3)
    found = sm.true_criticality(
        TableWorld(table), POLICY, step=step, n=settings.n_values, settings=settings
    )
    assert [estimate.n for estimate in found] == [1, 2, 4, 8, 16, 32]
    for estimate in found:
        exact = exact_criticality(
            table, state=2 * step, n=estimate.n, gamma=settings.gamma, horizon=459
        )
        assert abs(estimate.mean - exact) <= 2.5 * max(estimate.half_width, 1e-9)


def test_a_stochastic_world_averages_the_unperturbed_return_too() -> None:
    table = chain(60, slip=0.02)
    settings = Settings(trial_plan="paper", sampling_error=1.5, max_trials=4000)
    found = sm.true_criticality(
        TableWorld(table), POLICY, step=0, n=[1, 4], seed=0, settings=settings
    )
    assert [estimate.n for estimate in found] == [1, 4]
    for estimate in found:
        exact = exact_criticality(table, state=0, n=estimate.n, gamma=0.99, horizon=459)
        assert abs(estimate.mean - exact) <= 2.5 * estimate.half_width
        assert estimate.trials > 10


def test_a_sampled_policy_is_noise_too() -> None:
    # The policy itself takes action 1 with probability 1 / (1 + e^(1 + state)).
    settings = Settings(
        trial_plan="paper", action_choice="sampled", sampling_error=0.5, max_trials=3000
    )
    table = branching(40)
    found = sm.true_criticality(
        TableWorld(table), POLICY, step=0, n=[1, 8], seed=1, settings=settings
    )
    assert [estimate.n for estimate in found] == [1, 8]
    for estimate in found:
        exact = exact_criticality(
            table, state=0, n=estimate.n, gamma=0.99, horizon=459, sampled=True
        )
        assert abs(estimate.mean - exact) <= 2.5 * estimate.half_width
        assert estimate.trials > 10
        assert estimate.half_width <= 0.5


@pytest.mark.parametrize(
    "choice", [{"action_choice": "sampled"}, {"action_choice": "epsilon-greedy", "epsilon": 0.5}]
)
def test_later_draws_of_a_policy_are_those_without_the_random_actions(choice: Any) -> None:
    # No action changes where it goes on, and the first eight pay nothing.
    pays = [0.0] * 8 + [1.0 + state % 7 for state in range(8, 60)]
    table = [
        [[Outcome(1.0, min(state + 1, 59), action * pay, ends=state == 59)] for action in (0, 1)]
        for state, pay in enumerate(pays)
    ]
    settings = Settings(n_values=(1, 4, 8), trials=24, **choice)
    policy = load_policy(lambda rows: np.zeros((len(rows), 2), np.float32), kind="logits")
    runner = Runner(make_simulator(TableWorld(table), way="snapshot"), policy, settings)
    episode = runner.run_episode(EpisodeKey("natural", 0), seed=0)
    measurer = MomentMeasurer(runner, episode, 0, Randomness(environment=False, policy=True))
    measurements = measurer.measure(*settings.n_values)
    assert len(measurements) == 3
    for measurement in measurements:
        assert np.array_equal(measurement.perturbed, measurement.unperturbed)
        assert len(np.unique(measurement.perturbed)) == 24


def test_a_step_whose_horizon_was_cut_off_is_refused() -> None:
    world, policy = TableWorld(chain(60)), POLICY
    cut = Settings(n_values=(1,), gamma=0.9, max_episode_steps=50)
    horizon = cut.horizon
    (found,) = sm.true_criticality(world, policy, step=50 - horizon, n=1, settings=cut)
    whole = replace(cut, max_episode_steps=1000)
    (expected,) = sm.true_criticality(world, policy, step=50 - horizon, n=1, settings=whole)
    assert found == expected
    with pytest.raises(InvalidInput, match=f"step {51 - horizon} was not followed for its hor"):
        sm.true_criticality(world, policy, step=51 - horizon, n=1, settings=cut)


def test_the_same_call_gives_the_same_numbers() -> None:
    def measure() -> list[sm.Estimate]:
        settings = Settings(trial_plan="paper", sampling_error=2.0, max_trials=30)
        return sm.true_criticality(
            "CartPole-v1", LEAN, step=30, n=[1, 8], seed=3, settings=settings
        )

    first = measure()
    assert first == measure()
    assert [estimate.n for estimate in first] == [1, 8]


LEAN = load_policy(lean, kind="logits")


def test_the_cap_is_reported() -> None:
    settings = Settings(trial_plan="paper", sampling_error=0.001, max_trials=20)
    found = sm.true_criticality(TableWorld(chain(60)), POLICY, step=5, n=2, settings=settings)
    assert found[0].capped
    assert found[0].trials == 20


def test_bad_input() -> None:
    world = TableWorld(chain(60))
    with pytest.raises(InvalidInput, match="step 60 lies outside the episode of 60 steps"):
        sm.true_criticality(world, POLICY, step=60, n=1)
    with pytest.raises(InvalidInput, match=r"n must be whole numbers of at least 1, got \[0\]"):
        sm.true_criticality(world, POLICY, step=0, n=0)


def test_a_snapshot_that_lies_is_found_at_the_moment_itself() -> None:
    hidden = {"reward": 0.0}

    class Liar(TableWorld):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            hidden["reward"] = 0.0
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            hidden["reward"] += 1  # outside of the environment's own state
            return (observation, reward + hidden["reward"], *rest)

    world = Liar(chain(60))
    runner = Runner(make_simulator(world), POLICY, Settings())
    episode = runner.run_episode(EpisodeKey("natural", 0))
    with pytest.raises(EnvironmentFault, match="hides state from its snapshot"):
        MomentMeasurer(runner, episode, 4, Randomness(environment=False, policy=False))
    # … but it repeats itself from a reset, so replaying serves.
    with pytest.warns(DiagnosisCorrected, match="hides state .* measured again by replay"):
        found = sm.true_criticality(
            world, POLICY, step=4, n=1, settings=Settings(trial_plan="paper", max_trials=10)
        )
    assert found[0].mean > 0


def test_a_lie_that_only_mistakes_tell_is_found_after_the_trials() -> None:
    """Hidden state that the policy never touches passes the first proof, not the one afterwards."""
    hidden = {"mistakes": 0}

    class Liar(TableWorld):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            hidden["mistakes"] = 0
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            hidden["mistakes"] += self.state >= 50 and action == 1
            observation, reward, *rest = super().step(action)
            return (observation, reward - 100 * hidden["mistakes"], *rest)

    runner = Runner(make_simulator(Liar(branching(40))), POLICY, Settings())
    episode = runner.run_episode(EpisodeKey("natural", 0))
    randomness = Randomness(environment=False, policy=False)
    measurer = MomentMeasurer(runner, episode, 4, randomness)  # at step 4 of 40
    with pytest.raises(EnvironmentFault, match="hides state from its snapshot"):
        measurer.measure(32)


def test_coalescing_changes_no_bit_and_saves_steps() -> None:
    settings = Settings(n_values=(1, 2, 4, 8), trials=40)
    runner = Runner(make_simulator(TableWorld(branching(40))), POLICY, settings)
    episode = runner.run_episode(EpisodeKey("natural", 0))
    measurements = {}
    for coalesce in (True, False):
        measurer = MomentMeasurer(runner, episode, 4, Randomness(environment=False, policy=False))
        if not coalesce:
            measurer.state_index = None
        measurements[coalesce] = measurer.measure(*settings.n_values)
    steps = {True: 0, False: 0}
    for with_it, without in zip(measurements[True], measurements[False], strict=True):
        assert with_it.estimate == without.estimate
        assert with_it.perturbed.tobytes() == without.perturbed.tobytes()
        steps[True] += with_it.steps
        steps[False] += without.steps
    assert steps[True] < steps[False] / 3  # the lanes meet again every fifth step


class Later(gym.Env[Any, Any]):
    """What an action is worth is paid six steps later; until then something holds it."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, hold: Any, pay: Any) -> None:
        self.hold, self.pay = hold, pay

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        self.due = [0.0] * 6
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.age += 1
        self.due.append(self.hold(float(action)))
        paid = self.due.pop(0)
        reward = paid if isinstance(paid, float) else self.pay(paid)
        return np.array([self.age], np.float32), reward, self.age >= 60, False, {}


class Bonus(gym.Wrapper[Any, Any, Any, Any]):
    """A bonus at the end, by what another wrapper says of the episode."""

    def step(self, action: int) -> Any:
        observation, _, terminated, truncated, info = self.env.step(action)
        reward = info["episode"]["r"] if terminated else 0.0
        return observation, reward, terminated, truncated, info


def _in_closure(value: float) -> Any:
    return lambda: value


def _keep(value: Any) -> Any:
    return value


def _call(held: Any) -> float:
    return float(held())


@pytest.mark.parametrize("step", [0, 20])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Later(_in_closure, _call),
        lambda: Later(itertools.repeat, next),
        lambda: Bonus(gym.wrappers.RecordEpisodeStatistics(Later(_keep, _keep))),
    ],
    ids=["closure", "opaque", "statistics"],
)
def test_states_that_differ_out_of_sight_do_not_meet(make: Any, step: int) -> None:
    runner = Runner(make_simulator(make()), load_policy(_second, kind="q"), Settings(trials=20))
    episode = runner.run_episode(EpisodeKey("natural", 9))  # its trials are not repeated
    measurements = []
    for coalesce in (True, False):
        measurer = MomentMeasurer(
            runner, episode, step, Randomness(environment=False, policy=False)
        )
        if not coalesce:
            measurer.state_index = None
        measurements.append(measurer.measure(4)[0])
    assert measurements[0].estimate == measurements[1].estimate
    assert measurements[0].estimate.mean > 0


def _second(observations: Any) -> Any:
    return np.tile([0.0, 1.0], (len(observations), 1))


def test_a_lie_that_only_deep_mistakes_tell_is_found_by_repeating_the_worst_trial() -> None:
    """Hidden state that is reached, and read, only where mistakes lead."""
    hidden = {"visits": 0}

    class Liar(TableWorld):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            hidden["visits"] = 0
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            poor_and_far = self.state % 2 == 1 and self.state > 16
            observation, reward, *rest = super().step(action)
            hidden["visits"] += poor_and_far
            return (observation, reward - 9 * (poor_and_far and hidden["visits"] > 4), *rest)

    runner = Runner(make_simulator(Liar(branching(40))), POLICY, Settings(n_values=(8,)))
    episode = runner.run_episode(EpisodeKey("natural", 0))
    measurer = MomentMeasurer(runner, episode, 4, Randomness(environment=False, policy=False))
    with pytest.raises(EnvironmentFault, match="hides state that only mistakes reach"):
        measurer.measure(8)


@pytest.mark.parametrize(("step", "legal", "mean"), [(4, 3, 5 / 3), (5, 2, 0.5)])
def test_one_random_action_under_a_mask_is_exact(step: int, legal: int, mean: float) -> None:
    first = load_policy(lambda seen: np.tile(np.eye(4)[0], (len(seen), 1)), kind="q")
    one, two = sm.true_criticality(Masked(), first, step=step, n=[1, 2])
    assert (one.exact, one.trials, one.half_width) == (True, legal, 0.0)
    assert one.mean == pytest.approx(mean)
    assert (two.exact, two.trials) == (False, 48)


def test_a_policy_acts_as_its_own_library_evaluates_it() -> None:
    policy = sm.load_policy(lambda seen: np.tile([0.5, 0.0], (len(seen), 1)), kind="logits")
    policy.usual_choice = "sampled"
    asked: Any = {"step": 2, "n": 1}
    sampled = sm.Settings(action_choice="sampled")
    found = sm.true_criticality(make_branching(), policy, **asked)
    assert found == sm.true_criticality(make_branching(), policy, **asked, settings=sampled)
    with pytest.warns(UnlikeTraining, match="acts greedy here, where its own library's"):
        greedy = sm.true_criticality(make_branching(), policy, **asked, settings=sm.Settings())
    assert greedy != found
