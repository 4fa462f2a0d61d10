"""The simulator: what it promises besides exact restores, and what it refuses."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.environments import EnvironmentSpec, make_simulator, same
from safemargin.errors import EnvironmentFault, InvalidInput, NoPictures
from safemargin.policies import load_policy
from safemargin.replay.pictures import drawing_environment
from safemargin.study.provenance import describe_environment


class Toy(gym.Env[Any, Any]):
    """Does what the test tells it."""

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float64)

    def __init__(self, reward: Any = 1.0, observation: Any = None, fail: bool = False) -> None:
        self._reward, self._observation, self._fail = reward, observation, fail
        self._buffer = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._buffer[:] = 0
        return self._buffer, {"action_mask": np.array([1, 0, 1], dtype=np.int8)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._fail:
            raise RuntimeError("the motor\nis on fire")
        self._buffer += 1
        mask = np.array([0, 1, int(self._buffer[0]) % 2], dtype=np.int8)
        observation = self._buffer if self._observation is None else self._observation
        return observation, self._reward, False, False, {"action_mask": mask}


class Masked(Toy):
    """Gives its mask by a method, as sb3-contrib expects it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})

    def action_masks(self) -> Any:
        return [True, int(self._buffer[0]) % 2 == 0, False]


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (float("nan"), "Toy: the reward at step 1 is nan, not a finite number"),
        (np.float32("inf"), "Toy: the reward at step 1 is inf"),
        ("much", "Toy: the reward at step 1 is not a number: 'much'"),
        (None, "Toy: the reward at step 1 is not a number: None"),
        (np.zeros(2), "is not a number"),
    ],
)
def test_rewards_must_be_finite_numbers(reward: Any, text: str) -> None:
    simulator = make_simulator(Toy(reward))
    simulator.reset(0)
    with pytest.raises(EnvironmentFault, match=text):
        simulator.step(0)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array([1.0]), 1.0])
def test_numbers_of_any_kind_are_rewards(reward: Any) -> None:
    simulator = make_simulator(Toy(reward))
    simulator.reset(0)
    step = simulator.step(0)
    assert (step.reward, type(step.reward)) == (1.0, float)


@pytest.mark.parametrize(
    "observation",
    [np.array([0.0, np.nan]), {"a": np.array([np.nan])}, (1, float("nan"))],
)
def test_nan_observations_are_refused(observation: Any) -> None:
    simulator = make_simulator(Toy(observation=observation))
    simulator.reset(0)
    with pytest.raises(EnvironmentFault, match="Toy: the observation at step 1 contains NaN"):
        simulator.step(0)


def test_exceptions_of_the_environment_are_told_in_one_sentence() -> None:
    simulator = make_simulator(Toy(fail=True))
    simulator.reset(0)
    with pytest.raises(EnvironmentFault, match="step 1 raised RuntimeError: the motor is on fire"):
        simulator.step(0)


def test_no_step_before_a_reset_or_after_the_end() -> None:
    simulator = make_simulator(gym.make("CartPole-v1"))
    with pytest.raises(InvalidInput, match="the episode has ended; reset or restore it first"):
        simulator.step(0)
    simulator.reset(0)
    while not simulator.ended:
        saved = simulator.save()
        simulator.step(0)
    with pytest.raises(InvalidInput, match="CartPole-v1: the episode has ended"):
        simulator.step(0)
    simulator.restore(saved)
    assert simulator.step(0).terminated


@pytest.mark.parametrize("kind", [Toy, Masked])
def test_masks_survive_a_restore(kind: type[Toy]) -> None:
    simulator = make_simulator(kind())
    simulator.reset(0)
    simulator.step(1)
    saved, mask = simulator.save(), simulator.mask
    assert mask is not None
    assert mask.dtype == bool
    simulator.step(1)
    assert not np.array_equal(simulator.mask, mask)
    simulator.restore(saved)
    assert np.array_equal(simulator.mask, mask)


def test_a_mask_that_allows_nothing_is_refused() -> None:
    class Stuck(Masked):
        def action_masks(self) -> Any:
            return [False] * 3

    with pytest.raises(EnvironmentFault, match="the action mask at step 0 allows no action"):
        make_simulator(Stuck()).reset(0)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda: [True] * 5, r"step 0 has shape \[5\]; expected \[3\], one entry for each action"),
        (lambda: [True] * 2, r"step 0 has shape \[2\]; expected \[3\]"),
        (
            lambda: [[True], [True, True]],
            "Mine: reading the action mask at step 0 raised ValueError",
        ),
        (lambda: {}["mask"], "Mine: reading the action mask at step 0 raised KeyError: 'mask'"),
    ],
)
def test_a_mask_that_cannot_be_one_is_told_in_one_sentence(answer: Any, sentence: str) -> None:
    class Mine(Masked):
        def action_masks(self) -> Any:
            return answer()

    with pytest.raises(EnvironmentFault, match=sentence):
        make_simulator(Mine()).reset(0)


def test_at_the_end_of_an_episode_no_mask_is_needed() -> None:
    class Over(Masked):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            self._fail = True
            return self._buffer, 1.0, True, False, {}

        def action_masks(self) -> Any:
            if self._fail:
                raise RuntimeError("the game is over")
            return [True] * 3

    simulator = make_simulator(Over())
    simulator.reset(0)
    assert simulator.step(0).terminated
    assert simulator.mask is None


def test_a_close_that_fails_is_a_warning() -> None:
    class Window(Toy):
        def close(self) -> None:
            raise RuntimeError("the viewer was never opened")

    sentence = r"Window: close\(\) raised RuntimeError: the viewer was never opened"
    with pytest.warns(UserWarning, match=sentence):
        make_simulator(Window()).close()
    spec = EnvironmentSpec.parse(Window)
    policy = load_policy(lambda observations: np.zeros((1, 3)), kind="q")
    with pytest.warns(UserWarning, match=sentence):
        assert "Window" in describe_environment(spec, policy)["name"]
    with pytest.warns(UserWarning, match=sentence), pytest.raises(NoPictures):
        drawing_environment(spec)


def test_observations_belong_to_the_caller() -> None:
    """The toy reuses one buffer; what was handed out, or saved, must not change with it."""
    simulator = make_simulator(Toy())
    first = simulator.reset(0)
    saved = simulator.save()
    second = simulator.step(0).observation
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
    simulator.restore(saved)
    simulator.observation[:] = 99
    simulator.restore(saved)
    assert simulator.observation.tolist() == [0, 0]
    assert second.tolist() == [1, 1]


def test_elapsed_steps_are_restored() -> None:
    simulator = make_simulator(gym.make("Pendulum-v1", max_episode_steps=5))
    simulator.reset(0)
    action = np.zeros(1, np.float32)
    for _ in range(3):
        simulator.step(action)
    saved = simulator.save()
    for _ in range(2):
        assert not simulator.step(action).truncated
        assert simulator.step(action).truncated
        simulator.restore(saved)


def test_statistics_and_clocks_do_not_enter_the_digest() -> None:
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    simulator = make_simulator(env)
    simulator.reset(0)
    simulator.step(0)
    first = simulator.digest()
    simulator.reset(0)
    simulator.step(0)
    assert simulator.digest() == first


def test_what_the_statistics_say_of_this_episode_enters_the_digest() -> None:
    simulator = make_simulator(gym.wrappers.RecordEpisodeStatistics(Toy()))
    simulator.reset(0)
    before = simulator.digest()
    simulator.env.episode_returns += 1  # type: ignore[attr-defined]
    assert simulator.digest() not in (before, None)


def test_a_subclass_of_the_statistics_is_hashed_like_any_wrapper() -> None:
    class Own(gym.wrappers.RecordEpisodeStatistics):
        pass

    simulator = make_simulator(Own(Toy()))
    simulator.reset(0)
    before = simulator.digest()
    simulator.env.return_queue.append(1.0)  # type: ignore[attr-defined]
    assert simulator.digest() not in (before, None)


@pytest.mark.parametrize("text", ["atari:pong", "CartPole-v1", "HalfCheetah-v5", "FrozenLake-v1"])
@pytest.mark.parametrize("way", ["snapshot", "replay"])
def test_equal_states_of_common_environments_are_recognised(
    text: str, way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"a": "ale_py", "H": "mujoco"}.get(text[0], "gymnasium"))
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it stands
    simulator = make_simulator(EnvironmentSpec.parse(text).make(), way)
    simulator.reset(0)
    assert simulator.digest_is_whole
    simulator.step(simulator.env.action_space.sample())
    assert simulator.digest_is_whole
    simulator.close()


@pytest.mark.parametrize(
    "wrap",
    [
        gym.wrappers.TimeAwareObservation,
        gym.wrappers.FlattenObservation,
        lambda env: gym.wrappers.ClipReward(env, -1, 1),
        lambda env: gym.wrappers.TransformReward(env, lambda reward: 2 * reward),
        lambda env: gym.wrappers.FrameStackObservation(env, 4),
    ],
)
def test_equal_states_behind_gymnasiums_wrappers_are_recognised(wrap: Any) -> None:
    simulator = make_simulator(wrap(gym.make("CartPole-v1")))
    simulator.reset(0)
    simulator.step(0)
    assert simulator.digest_is_whole


def _closure(number: int) -> Any:
    return lambda: number


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        (_closure, True),
        (lambda: 1, True),
        (_closure(1), False),
        (lambda number=1: number, False),
        ([{"deep": {_closure(1)}}], False),
        (itertools.count(), False),
        (weakref.ref(Toy), False),
    ],
)
def test_what_cannot_be_looked_into_leaves_no_digest(value: Any, whole: bool) -> None:
    env = Toy()
    simulator = make_simulator(env)
    simulator.reset(0)
    assert simulator.digest_is_whole
    env.held = value  # type: ignore[attr-defined]
    assert simulator.digest_is_whole == whole
    assert (simulator.digest() is not None) == whole


def test_functions_made_in_one_place_are_told_apart_by_their_code() -> None:
    env = Toy()
    simulator = make_simulator(env)
    simulator.reset(0)
    seen = set()
    for function in (lambda: 1, lambda: 2):
        env.held = function  # type: ignore[attr-defined]
        seen.add(simulator.digest())
    assert len(seen) == 2


def test_reseeding_makes_trials_differ_and_repeatable() -> None:
    for way in ("snapshot", "replay"):
        simulator = make_simulator(gym.make("FrozenLake-v1", map_name="8x8"), way=way)
        simulator.reset(0)
        simulator.step(1)
        saved = simulator.save()

        def trial(seed: int, simulator: Any = simulator, saved: Any = saved) -> list[Any]:
            simulator.restore(saved)
            simulator.reseed(np.random.default_rng(seed))
            middle = simulator.save()
            seen = [simulator.step(2).observation for _ in range(8)]
            simulator.restore(middle)
            assert seen == [simulator.step(2).observation for _ in range(8)]
            return seen

        assert trial(1) == trial(1)
        assert len({tuple(trial(seed)) for seed in range(10)}) > 3


def test_generators_are_reseeded_from_the_outermost_layer_inwards() -> None:
    class Own(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.own = np.random.default_rng(0)

    env = Own(Toy())
    simulator = make_simulator(env)
    simulator.reset(0)
    simulator.reseed(np.random.default_rng(5))
    seed = int(np.random.default_rng(5).integers(2**63))
    assert env.own.bit_generator.state == np.random.PCG64(seed).state


def test_layers_are_named_and_hashed_each() -> None:
    env = gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1"))
    simulator = make_simulator(gym.wrappers.TimeLimit(env, 100))
    simulator.reset(0)
    before = simulator.layer_digests()
    assert list(before) == [
        "TimeLimit",
        "TimeAwareObservation",
        "TimeLimit #2",
        "OrderEnforcing",
        "PassiveEnvChecker",
        "CartPoleEnv",
    ]
    simulator.step(0)
    after = simulator.layer_digests()
    assert [name for name in before if before[name] == after[name]] == [
        "OrderEnforcing",
        "PassiveEnvChecker",
    ]


def test_a_random_space_inside_an_environment_is_part_of_the_state() -> None:
    class Shuffled(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.action_space.seed(seed)
            return self.env.reset(seed=seed)

        def step(self, action: Any) -> Any:
            return self.env.step(self.action_space.sample())

    simulator = make_simulator(Shuffled(gym.make("CartPole-v1")))
    simulator.reset(0)
    saved = simulator.save()
    first = [simulator.step(0).observation for _ in range(6)]
    simulator.restore(saved)
    assert all(same(one, simulator.step(0).observation) for one in first)


def test_snapshots_belong_to_their_simulator() -> None:
    first, second = (make_simulator(gym.make("CartPole-v1")) for _ in range(2))
    first.reset(0)
    second.reset(0)
    with pytest.raises(InvalidInput, match="only be restored by the simulator that took it"):
        second.restore(first.save())


def test_replay_notices_when_it_does_not_lead_back() -> None:
    class Drifting(Toy):
        resets = 0

        def reset(
            self, *, seed: int | None = None, options: Any = None
        ) -> tuple[Any, dict[str, Any]]:
            Drifting.resets += 1
            self._buffer = np.full(2, float(Drifting.resets))
            return self._buffer, {}

    simulator = make_simulator(Drifting(), way="replay")
    simulator.reset(4)
    with pytest.raises(EnvironmentFault, match=r"replay from reset\(seed=4\) did not lead back"):
        simulator.restore(simulator.save())


def test_vector_environments_and_strangers_are_refused() -> None:
    vector = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(InvalidInput, match="is a vector environment, which resets itself"):
        make_simulator(vector)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="expected a gymnasium.Env, got builtins.str"):
        make_simulator("CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="way 'snap' is unknown; did you mean 'snapshot'"):
        make_simulator(gym.make("CartPole-v1"), way="snap")  # type: ignore[arg-type]
