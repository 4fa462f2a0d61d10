"""The doctor: what it lets through, what it refuses, and whether it names the culprit."""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from safemargin.core.settings import Settings
from safemargin.environments import EnvironmentSpec, register_state
from safemargin.environments.doctor import Diagnosis, examine
from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies.base import Memory, Observations, Policy

QUICK: dict[str, Any] = {"points": 10, "steps": 30, "starts": 12, "start_steps": 40}


class Line(gym.Env[Any, Any]):
    """Walk on a line; the subclasses below break one rule each."""

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(-1000, 1000, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = float(self.np_random.normal())
        self.age = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += action - 1 + self.noise()
        self.age += 1
        return self._seen(), self.position, self.age >= 40, False, {}

    def noise(self) -> float:
        return 0.0

    def _seen(self) -> npt.NDArray[np.float64]:
        return np.array([self.position])


class Noisy(Line):
    def noise(self) -> float:
        return float(self.np_random.normal())


class GlobalNoise(Line):
    def noise(self) -> float:
        return float(np.random.normal()) + random.random()


class Counted(Line):
    """State in an object of C."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.counter = itertools.count()
        return super().reset(seed=seed)

    def noise(self) -> float:
        return float(next(self.counter) % 7)


_hidden = {"ticks": 0}


class Hidden(Line):
    """State in a module variable, set by reset: a restore lies, replay does not."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        _hidden["ticks"] = 0
        return super().reset(seed=seed)

    def noise(self) -> float:
        _hidden["ticks"] += 1
        return float(_hidden["ticks"] % 5)


class Unrepeatable(Line):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.np_random = np.random.default_rng()
        self.position, self.age = float(self.np_random.normal()), 0
        return self._seen(), {}


class Endless(Line):
    """Remembers something over episodes."""

    total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.total += 1
        return super().reset(seed=seed)

    def noise(self) -> float:
        return self.total


class NaNReward(Line):
    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.age == 13 else reward, *rest  # type: ignore[return-value]


class OneStart(Line):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0.0
        return self._seen(), {}


class Clock(Line):
    def noise(self) -> float:
        self.last_call = time.perf_counter_ns()
        return 0.0


class NoisyInSave(Noisy):
    """Registered below, with its generator, but without a way to reseed it."""


def _restore_noisy(env: NoisyInSave, data: Any) -> None:
    env.position, env.age, env.np_random.bit_generator.state = data


register_state(
    NoisyInSave,
    save=lambda env: [env.position, env.age, env.np_random.bit_generator.state],
    restore=_restore_noisy,
)


class NoisyInClosure(Line):
    def __init__(self) -> None:
        self.seed_it, self.draw = _hidden_generator()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed_it(seed)
        return super().reset(seed=seed)

    def noise(self) -> float:
        return float(self.draw())


def _hidden_generator() -> Any:
    held: dict[str, np.random.Generator] = {}

    def seed_it(seed: int | None) -> None:
        held["generator"] = np.random.default_rng(seed)

    return seed_it, lambda: held["generator"].normal()


class SeededGlobalNoise(Line):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        np.random.seed(seed)
        return super().reset(seed=seed)

    def noise(self) -> float:
        return float(np.random.normal())


class LeakyWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps its state in a closure."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        count = 0

        def add() -> int:
            nonlocal count
            count += 1
            return count

        def clear() -> None:
            nonlocal count
            count = 0

        self.add, self.clear = add, clear

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.clear()
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + self.add(), *rest


class Dictionary(Line):
    action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})  # type: ignore[assignment]


class Table(Policy):
    """Scores from the observation; `noise` breaks that."""

    kind = "q"
    identity = "test"
    description = "a table"

    def __init__(self, *, noise: float = 0.0, fits: bool = True) -> None:
        self._generator = np.random.default_rng(0)
        self._noise, self._fits = noise, fits

    def scores(
        self, observations: Observations, memory: Memory = None
    ) -> tuple[npt.NDArray[np.float32], Memory]:
        rows = np.asarray(observations)[:, :1]
        scores = np.hstack([-rows, 0 * rows, rows])
        return (scores + self._noise * self._generator.normal(size=scores.shape)).astype(
            np.float32
        ), None

    def check(self, env: gym.Env[Any, Any]) -> None:
        if not self._fits:
            raise PolicyFault("the table has no row for this")


def told(diagnosis: Diagnosis, level: str) -> str:
    return " | ".join(finding.text for finding in diagnosis.findings if finding.level == level)


def test_a_sound_environment_is_measured_by_snapshot() -> None:
    stages: list[str] = []
    diagnosis = examine(Line, progress=stages.append)
    assert diagnosis.measurable
    assert diagnosis.way == "snapshot"
    assert diagnosis.environment_deterministic
    assert diagnosis.policy_deterministic is None
    assert (diagnosis.continuations, diagnosis.wrong) == (40, 0)
    assert (diagnosis.distinct_starts, diagnosis.starts_tried) == (40, 40)
    assert diagnosis.opaque == ()
    assert told(diagnosis, "problem") == told(diagnosis, "note") == ""
    assert diagnosis.verdict == (
        "Line can be measured by snapshot: all 40 restored runs equal the uninterrupted one; "
        "the environment is deterministic"
    )
    assert stages == ["resets", "snapshots", "randomness", "starts"]


def test_the_diagnosis_is_plain_data() -> None:
    diagnosis = examine(Counted, **QUICK)
    values = json.loads(json.dumps(diagnosis.to_dict()))
    assert values["way"] == "replay"
    assert values["opaque"] == ["Counted.counter (itertools.count)"]
    assert {finding["level"] for finding in values["findings"]} == {"ok", "note"}


def test_the_same_examination_twice_says_the_same() -> None:
    assert examine(Noisy, Table(), **QUICK) == examine(Noisy, Table(), **QUICK)


def test_randomness_is_found_by_experiment() -> None:
    diagnosis = examine(Noisy, **QUICK)
    assert diagnosis.measurable
    assert not diagnosis.environment_deterministic
    assert "the environment is random" in diagnosis.verdict


class Adapter(gym.Env[Any, Any]):
    """No wrapper, but holds the simulator in an attribute of that name."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.action_space, self.observation_space = env.action_space, env.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed)

    def step(self, action: int) -> Any:
        return self.env.step(action)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_environment_inside_another_is_looked_into(wrapped: bool) -> None:
    def make() -> gym.Env[Any, Any]:
        inner = gym.make("FrozenLake-v1")
        return Adapter(inner if wrapped else inner.unwrapped)

    diagnosis = examine(make, **QUICK)
    assert (diagnosis.measurable, diagnosis.way) == (True, "snapshot")
    assert not diagnosis.environment_deterministic


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (NoisyInSave, "NoisyInSave, whose register_state has no reseed:"),
        (NoisyInClosure, "state that no snapshot reaches:"),
        (Counted, "state that no snapshot reaches (Counted.counter (itertools.count)):"),
        (SeededGlobalNoise, "the global generator numpy.random; in state that no snapshot"),
    ],
)
def test_where_randomness_may_hide_the_doctor_says_so(kind: type[Line], place: str) -> None:
    diagnosis = examine(kind, **QUICK)
    assert diagnosis.measurable
    assert f"no randomness was found, but it may hide in {place}" in told(diagnosis, "note")
    assert "all trials then share what is drawn there" in told(diagnosis, "note")
    assert "the environment is deterministic" not in told(diagnosis, "ok")
    assert diagnosis.verdict.endswith("the environment is taken as deterministic")


def test_a_second_generator_may_hide_behind_the_one_that_was_found() -> None:
    class Both(NoisyInClosure):
        def noise(self) -> float:
            return super().noise() + float(self.np_random.normal())

    diagnosis = examine(Both, **QUICK)
    assert diagnosis.verdict.endswith("the environment is random")
    assert "no other randomness was found, but it may hide in state" in told(diagnosis, "note")


def test_opaque_state_is_named_and_replayed() -> None:
    diagnosis = examine(lambda: gym.wrappers.TimeLimit(Counted(), 30), **QUICK)
    assert (diagnosis.measurable, diagnosis.way) == (True, "replay")
    assert "the layer that leaks is Counted, perhaps through Counted.counter" in told(
        diagnosis, "note"
    )


def test_a_restore_that_lies_is_found_and_named() -> None:
    diagnosis = examine(lambda: gym.wrappers.TimeLimit(Hidden(), 30), **QUICK)
    assert diagnosis.way == "replay"
    assert "the layer that leaks is Hidden, which keeps state outside its attributes" in told(
        diagnosis, "note"
    )


def test_the_leaking_wrapper_is_named_and_not_the_environment_below() -> None:
    diagnosis = examine(
        lambda: gym.wrappers.FrameStackObservation(LeakyWrapper(Line()), 2), **QUICK
    )
    assert diagnosis.way == "replay"
    assert "the layer that leaks is LeakyWrapper" in told(diagnosis, "note")


def test_global_generators_are_refused_and_named() -> None:
    diagnosis = examine(GlobalNoise, **QUICK)
    assert not diagnosis.measurable
    assert diagnosis.way is None
    assert "numpy.random and random" in diagnosis.verdict
    assert "let it use self.np_random" in told(diagnosis, "note")


@pytest.mark.parametrize("kind", [Unrepeatable, Endless])
def test_resets_that_cannot_be_repeated_are_refused(kind: type[Line]) -> None:
    diagnosis = examine(kind, **QUICK)
    assert not diagnosis.measurable
    assert "do not give the same episode again in the same environment" in diagnosis.verdict


def test_a_wrong_reward_is_a_finding_and_no_traceback() -> None:
    diagnosis = examine(NaNReward, **QUICK)
    assert not diagnosis.measurable
    assert diagnosis.verdict == (
        "NaNReward cannot be measured: the reward at step 13 is nan, not a finite number"
    )


def test_equal_starts_are_counted_and_an_opening_is_advised() -> None:
    diagnosis = examine(OneStart, Table(), **QUICK)
    assert diagnosis.measurable
    assert (diagnosis.distinct_starts, diagnosis.starts_tried) == (1, 12)
    assert "12 starts gave 1 different episode: " in told(diagnosis, "note")
    assert "ask for a random opening, e.g. --opening 30 (Settings(opening=30))" in told(
        diagnosis, "note"
    )
    opened = examine(OneStart, Table(), Settings(opening=4), **QUICK)
    assert 1 < opened.distinct_starts < 12
    assert "a longer random opening than 4, e.g. --opening 30" in told(opened, "note")
    longer = examine(OneStart, Table(), Settings(opening=30), **{**QUICK, "starts": 40})
    assert told(longer, "note").endswith("a longer random opening than 30 (--opening)")


def test_a_clock_inside_is_only_worth_a_note() -> None:
    diagnosis = examine(Clock, **QUICK)
    assert diagnosis.measurable
    assert "layer Clock holds something that differs from run to run" in told(diagnosis, "note")


def test_policies_are_examined_too() -> None:
    assert examine(Line, Table(), **QUICK).policy_deterministic is True
    explorer = Settings(action_choice="epsilon-greedy", epsilon=0.1)
    diagnosis = examine(Line, Table(), explorer, **QUICK)
    assert diagnosis.measurable
    assert diagnosis.policy_deterministic is False
    assert "its action choice (epsilon-greedy) is random" in told(diagnosis, "note")
    noisy = examine(Line, Table(noise=0.1), **QUICK)
    assert not noisy.measurable
    assert "the policy's scores differ for the same observation" in noisy.verdict
    with pytest.raises(PolicyFault, match="no row for this"):
        examine(Line, Table(fits=False), **QUICK)


def test_actions_that_cannot_be_drawn_are_refused() -> None:
    diagnosis = examine(Dictionary, **QUICK)
    assert not diagnosis.measurable
    assert "random actions are defined for" in diagnosis.verdict


def test_bad_questions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs points of at least 1, got 0"):
        examine(Line, points=0)
    vector = lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")  # noqa: E731
    with pytest.raises(InvalidInput, match="is a vector environment"):
        examine(vector)  # type: ignore[arg-type]


def atari(**arguments: Any) -> gym.Env[Any, Any]:
    return EnvironmentSpec.parse("ALE/Pong-v5", {"frameskip": 4, **arguments}).make()


def test_native_sticky_actions_are_refused_by_name() -> None:
    pytest.importorskip("ale_py")
    diagnosis = examine(lambda: atari(repeat_action_probability=0.25), **QUICK)
    assert not diagnosis.measurable
    assert "ALE's native sticky actions are on (repeat_action_probability=0.25)" in (
        diagnosis.verdict
    )
    assert "gymnasium.wrappers.StickyAction" in diagnosis.verdict


def test_sticky_actions_in_a_wrapper_are_measured() -> None:
    pytest.importorskip("ale_py")
    diagnosis = examine(
        EnvironmentSpec.parse("atari:pong", {"sticky": 0.25}).make,
        points=10,
        steps=25,
        starts=3,
        start_steps=5,
    )
    assert (diagnosis.measurable, diagnosis.way) == (True, "snapshot")
    assert not diagnosis.environment_deterministic


def test_noop_starts_of_atari_are_few_and_said_so() -> None:
    pytest.importorskip("ale_py")
    make = EnvironmentSpec.parse("atari:pong", {"noop_max": 3}).make
    diagnosis = examine(make, points=4, steps=10, starts=10, start_steps=25)
    assert diagnosis.measurable
    assert diagnosis.environment_deterministic
    assert diagnosis.distinct_starts <= 3
    assert (
        "a study of many more would repeat itself; ask for a random opening, e.g. --opening 400"
    ) in told(diagnosis, "note")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_box2d_is_never_copied_but_replayed() -> None:
    pytest.importorskip("Box2D")
    pytest.importorskip("pygame")
    diagnosis = examine(EnvironmentSpec.parse("LunarLander-v3").make, **QUICK)
    assert (diagnosis.measurable, diagnosis.way) == (True, "replay")
    assert "no snapshot was tried: the layer that leaks is LunarLander" in told(diagnosis, "note")
    assert "LunarLander.world (Box2D.Box2D.b2World)" in diagnosis.opaque
