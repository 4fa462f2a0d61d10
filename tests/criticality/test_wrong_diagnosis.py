"""One moment in worlds that show only late what they are: the numbers must still be right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from helpers.late import Alarmed, Late, right

import safemargin as sm
from safemargin.core.records import EpisodeKey
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.one_moment import DiagnosisCorrected
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import DiagnosisWrong, EnvironmentFault, InvalidInput

SETTINGS = sm.Settings(gamma=0.9, trials=48)


def measure(world: gym.Env[Any, Any], step: int, n: list[int], **more: Any) -> list[sm.Estimate]:
    actions = int(world.action_space.n)  # type: ignore[attr-defined]
    more = {"settings": SETTINGS, **more}
    return sm.true_criticality(world, right(actions), step=step, n=n, **more)


def assert_right(world: Any, step: int, found: list[sm.Estimate]) -> None:
    assert found
    for estimate in found:
        exact = world.truth(step, estimate.n, SETTINGS)
        # Two and a half half-widths of 95 % are five deviations.
        assert abs(estimate.mean - exact) <= 2.5 * estimate.half_width + 1e-9, estimate


def known_as_random(world: Any, step: int, n: list[int], seed: int, settings: Any) -> Any:
    """What is measured by somebody who knows from the start that the world is random."""
    chosen = replace(settings, n_values=tuple(n))
    runner = Runner(make_simulator(world), right(int(world.action_space.n)), chosen)
    episode = runner.run_episode(EpisodeKey("natural", seed), seed=seed)
    random = Randomness(environment=True, policy=False)
    measurer = MomentMeasurer(runner, episode, step, random, repeat_every_n=True)
    return [measurement.estimate for measurement in measurer.measure(*n)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("after", [50, 150, 300, 900])
def test_randomness_that_comes_late(after: int, seed: int) -> None:
    world = Late(after=after, row=2, steps=after + 30)
    step = after - 1
    settings = replace(SETTINGS, seed=seed)
    found = measure(world, step, [2], seed=seed, settings=settings)
    assert found == known_as_random(world, step, [2], seed, settings)
    assert_right(world, step, found)
    assert not found[0].exact
    assert found[0].half_width > 0
    # Where nothing is drawn within the horizon, there is nothing to be wrong about.
    early = measure(world, after - 45, [2], seed=seed)
    assert_right(world, after - 45, early)
    assert early[0].exact


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("row", "actions", "n", "trials"), [(2, 2, 2, 48), (8, 3, 16, 48), (12, 3, 32, 150)]
)
def test_randomness_that_takes_many_mistakes(
    row: int, actions: int, n: int, trials: int, seed: int
) -> None:
    """A trial in four, seven or seventeen draws; one alone would rarely show it."""
    world = Late(row=row, actions=actions)
    settings = replace(SETTINGS, trials=trials, seed=seed)
    found = measure(world, 5, [n], seed=seed, settings=settings)
    assert found == known_as_random(world, 5, [n], seed, settings)
    assert_right(world, 5, found)
    assert not found[0].exact


def test_half_widths_hold_where_randomness_was_found_late() -> None:
    world = Late(after=30, row=1)
    held = []
    for seed in range(60):
        settings = sm.Settings(gamma=0.9, trials=48, seed=seed)
        for estimate in measure(world, 29, [2, 4], settings=settings):
            exact = world.truth(29, estimate.n, settings)
            held.append(abs(estimate.mean - exact) <= estimate.half_width)
    assert sum(held) / len(held) >= 0.88  # 0.95 is stated; four deviations for 120 of them


def test_randomness_without_any_mistake() -> None:
    world = Late(after=20, row=0)
    found = measure(world, 10, [1, 4])
    assert_right(world, 10, found)
    assert not any(estimate.exact for estimate in found)


def measurer_of(world: Any, step: int, way: Any = "snapshot", **settings: Any) -> MomentMeasurer:
    chosen = sm.Settings(gamma=0.95, **settings)
    runner = Runner(make_simulator(world, way=way), right(int(world.action_space.n)), chosen)
    episode = runner.run_episode(EpisodeKey("natural", 0))
    return MomentMeasurer(runner, episode, step, Randomness(environment=False, policy=False))


def test_the_measurer_says_what_it_saw() -> None:
    with pytest.raises(DiagnosisWrong, match="after step 9 of episode natural 0 .* in a trial"):
        measurer_of(Late(), 9).measure(2)
    with pytest.raises(DiagnosisWrong, match="random numbers under the policy, although"):
        measurer_of(Late(row=0), 9)
    with pytest.raises(DiagnosisWrong, match="hides state from its snapshot") as caught:
        measurer_of(Alarmed(), 9).measure(4)
    assert caught.value.correction == {"way": "replay"}


def test_randomness_is_seen_in_trials_that_follow_others() -> None:
    """The draw comes after the step at which trials have merged."""

    class Drawn(Late):
        def step(self, action: Any) -> Any:
            self.marked = getattr(self, "marked", False) or bool(action)
            seen, reward, *rest = super().step(action)
            if self.t == 30 and self.marked:
                reward += float(self.np_random.integers(2))
            return seen, reward, *rest  # type: ignore[return-value]

    with pytest.raises(DiagnosisWrong, match="in a trial with 4 mistakes"):
        measurer_of(Drawn(row=99), 9).measure(4)


@pytest.mark.parametrize("loud", [True, False])
def test_hidden_state_leads_to_replay(loud: bool) -> None:
    world = Alarmed(loud=loud)
    with pytest.warns(DiagnosisCorrected, match="hides state .* measured again by replay"):
        found = measure(world, 9, [1, 2, 4])
    assert all(estimate.exact for estimate in found)
    assert_right(world, 9, found)
    assert measure(world, 9, [1, 2, 4], way="replay") == found
    with pytest.raises(EnvironmentFault, match="hides state"):
        measure(world, 9, [1, 2, 4], way="snapshot")


@pytest.mark.filterwarnings("ignore::safemargin.criticality.one_moment.DiagnosisCorrected")
def test_replay_is_the_last_resort() -> None:
    class Unsteady(Late):
        """Counts its resets, and shows it late."""

        resets = 0

        def reset(self, **given: Any) -> Any:
            Unsteady.resets += 1
            return super().reset(**given)

        def step(self, action: Any) -> Any:
            seen, reward, *rest = super().step(action)
            return seen, reward + (self.t == 30) * self.resets, *rest  # type: ignore[return-value]

    for way in (None, "snapshot", "replay"):
        with pytest.raises(EnvironmentFault, match="did not repeat|did not give what was recorded"):
            measure(Unsteady(row=99), 9, [1], way=way)


def test_an_unknown_way() -> None:
    with pytest.raises(InvalidInput, match="way 'reply' is unknown; did you mean 'replay'"):
        measure(Late(), 9, [1], way="reply")
