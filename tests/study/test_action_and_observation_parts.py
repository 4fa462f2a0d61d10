"""Agents whose observations are Dicts or Tuples, and whose actions have several parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm
from safemargin.errors import EnvironmentFault, PolicyFault
from safemargin.policies import load_policy
from safemargin.policies.action_spaces import joint_actions, joint_logits
from safemargin.policies.actions import PolicyActions
from safemargin.policies.checks import sample_batch
from safemargin.web.report import write_report

SETTINGS = sm.Settings(gamma=0.9, n_values=(1, 2), trials=20)


class Locks(gym.Env[Any, Any]):
    """Two dials and a lamp: every step, each dial that shows its digit earns a point."""

    def __init__(self, form: str = "tuple", masked: bool = False) -> None:
        self.action_space = gym.spaces.MultiDiscrete([3, 2])
        here, clock = gym.spaces.Box(0, 3, (2,), np.int64), gym.spaces.Discrete(13)
        self.form, self.masked = form, masked
        self.observation_space: Any = gym.spaces.Tuple((here, clock))
        if form == "dict":
            nested = gym.spaces.Dict(clock=clock)
            self.observation_space = gym.spaces.Dict(digits=here, inner=nested)
        if form == "bits":
            self.action_space = gym.spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        self.digits = self._draw()
        return self._observe(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self.masked:
            assert action[0] != 2, "the mask forbids it"
        reward = float((np.asarray(action) == self.digits).sum())
        self.at += 1
        self.digits = self._draw()
        return self._observe(), reward, self.at == 12, False, self._info()

    def _draw(self) -> np.ndarray:
        return np.array([self.at % 2, (self.at + 1) % 2])

    def _observe(self) -> Any:
        if self.form == "dict":
            return {"digits": self.digits.copy(), "inner": {"clock": np.int64(self.at)}}
        return self.digits.copy(), np.int64(self.at)

    def _info(self) -> dict[str, Any]:
        mask = np.array([True, True, False, True, True])
        return {"action_mask": mask} if self.masked else {}


def of_tuple(observations: Any) -> np.ndarray:
    digits, clock = observations
    assert digits.shape == (len(clock), 2)
    return _towards(digits, (3, 2))


def of_dict(observations: Any) -> np.ndarray:
    assert observations["inner"]["clock"].ndim == 1
    return _towards(observations["digits"], (3, 2))


def of_bits(observations: Any) -> np.ndarray:
    return _towards(observations[0], (2, 2))


def _towards(digits: np.ndarray, parts: tuple[int, ...]) -> np.ndarray:
    return joint_logits(
        [4.0 * (digits[:, [at]] == np.arange(many)) for at, many in enumerate(parts)]
    )


@pytest.mark.parametrize(
    ("form", "policy", "worth"),
    # A random action misses each dial with a probability of 1 − 1/choices.
    [("tuple", of_tuple, 2 / 3 + 1 / 2), ("dict", of_dict, 2 / 3 + 1 / 2), ("bits", of_bits, 1)],
)
def test_a_study_of_actions_in_parts_measures_what_chance_says(
    tmp_path: Path, form: str, policy: Any, worth: float
) -> None:
    study = sm.Study.create(
        tmp_path / "study",
        env=lambda: Locks(form),
        policy=load_policy(policy, kind="logits"),
        settings=SETTINGS,
    )
    study.collect(natural=12, spread=4, workers=1)
    tuples = study.tuples()
    losses = tuples.criticalities.mean(axis=0)  # the deviation of one of 16 × 20 trials is < 0.8
    assert losses == pytest.approx([worth, 1.9 * worth], abs=5 * 1.2 / np.sqrt(16 * 20))
    assert len(study.environment["joint_actions"]) == {"bits": 4}.get(form, 6)
    assert study.status().moments["natural"] == 12
    if form == "tuple":
        assert write_report(study, tmp_path / "report.html").path.stat().st_size > 10_000
    # A range of joint log-probabilities is the sum over the parts: 4 + 4 at every step.
    assert set(np.round(tuples.proxies, 4).ravel()) == {8.0}


def test_a_mask_of_each_part_keeps_to_what_is_legal() -> None:
    estimates = sm.true_criticality(
        Locks(masked=True), load_policy(of_tuple, kind="logits"), step=3, n=2, settings=SETTINGS
    )
    assert estimates[0].mean == pytest.approx(1.9, abs=1)  # a choice of two on each dial


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    class Short(Locks):
        def _info(self) -> dict[str, Any]:
            return {"action_mask": np.ones(4, bool)}

    class Empty(Locks):
        def _info(self) -> dict[str, Any]:
            return {"action_mask": np.array([False, False, False, True, True])}

    policy = load_policy(of_tuple, kind="logits")
    with pytest.raises(EnvironmentFault, match=r"shape \[4\]; expected \[5\], one entry for"):
        sm.true_criticality(Short(), policy, step=1, n=1)
    with pytest.raises(EnvironmentFault, match="allows no action at all"):
        sm.true_criticality(Empty(), policy, step=1, n=1)


def test_a_controller_names_the_choices_itself() -> None:
    def exact(observations: Any) -> np.ndarray:
        return observations[0].astype(np.float32)

    def between(observations: Any) -> np.ndarray:
        return observations[0] + 0.5

    found = sm.true_criticality(
        Locks(), load_policy(exact, kind="actions"), step=2, n=1, settings=SETTINGS
    )
    assert found[0].mean > 0
    with pytest.raises(PolicyFault, match=r"\[0.5, 1.5\] is none of MultiDiscrete.*whole numbers"):
        sm.true_criticality(Locks(), load_policy(between, kind="actions"), step=2, n=1)


def test_too_many_joint_actions_are_refused_with_the_way_out() -> None:
    class Large(Locks):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.MultiDiscrete([100, 100])

    with pytest.raises(PolicyFault, match=r"needs? at most 4,096 joint actions .*kind 'actions'"):
        load_policy(of_tuple, kind="logits").check(Large())


def test_joint_logits_by_hand() -> None:
    first, second = np.array([[1.0, 3.0]]), np.array([[0.0, -2.0, -1.0]])
    assert joint_logits([first, second]).tolist() == [[-2, -4, -3, 0, -2, -1]]
    space = gym.spaces.MultiDiscrete([2, 3], start=[5, 0])
    assert joint_actions(space) == [[5, 0], [5, 1], [5, 2], [6, 0], [6, 1], [6, 2]]


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([3, 2, 4]), gym.spaces.MultiBinary(5)])
def test_a_model_of_stable_baselines_chooses_what_its_library_would(space: gym.Space[Any]) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")

    class World(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        action_space = space

    model = stable_baselines3.PPO("MlpPolicy", World(), n_steps=64, seed=3, device="cpu")
    policy, observations = load_policy(model), sample_batch(World.observation_space, 256)
    choose = PolicyActions(space, policy.kind, sm.Settings())
    scores, _ = policy.scores(observations)
    expected, _ = model.predict(observations, deterministic=True)
    assert [choose(row).tolist() for row in scores] == expected.tolist()
    assert len(np.unique(expected, axis=0)) > 1
