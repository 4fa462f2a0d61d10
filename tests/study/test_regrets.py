"""Regret and stakes of a study's moments, against worlds where they are known."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.worlds import Masked, RiskyRoad, make_branching

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import StudyIncomplete
from safemargin.study.regrets import read_regrets, summarise_regret

EXACT = {"n_values": (1, 2), "gamma": 0.5}


class WrongRoad(RiskyRoad):
    """A road on which action 1 costs the episode's risk – or earns it, where the risk is small.

    The agent always takes action 0: its regret is the risk below 0.3, and 0 elsewhere; the stakes
    are half the risk everywhere, and c = ± risk / 2.
    """

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, -reward if self.risk < 0.3 else reward, *rest


def always_first(observations: np.ndarray) -> np.ndarray:
    """How sure it is of action 0 depends on what it sees, so that plays can be told apart."""
    sure = 1 + np.abs(observations).sum(axis=1)
    return np.stack([sure, np.zeros_like(sure)], axis=1).astype(np.float32)


def risks(study: sm.Study, keys: Any) -> np.ndarray:
    found = []
    for key in keys:
        env = WrongRoad()
        env.reset(seed=study.store.episode(key).seed)
        found.append(env.risk)
    return np.array(found)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong") / "study"
    with sm.Study.create(folder, WrongRoad, always_first, EXACT, scores="logits") as study:
        study.collect(60, 10, workers=1)
    return folder


def test_a_road_whose_regret_is_known(wrong: Path) -> None:
    with sm.Study.open(wrong) as study:
        found = read_regrets(study.store)
        risk = risks(study, found.keys)
        assert found.how == "exact"
        assert found.regret == pytest.approx(np.where(risk < 0.3, risk, 0))
        assert found.stakes == pytest.approx(risk / 2)
        assert found.criticality == pytest.approx(np.where(risk < 0.3, -risk / 2, risk / 2))
        assert (found.regret >= 0).all()
        summary = summarise_regret(study.store)
    assert summary is not None
    assert summary.moments == 60
    assert summary.wrong == pytest.approx((risk[found.natural] < 0.3).mean())
    assert summary.mean_stakes == pytest.approx(summary.mean_criticality + summary.mean_regret)


def test_status_and_export_say_it(
    wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sm.Study.open(wrong) as study:
        study.export(tmp_path / "tuples.csv")
        found = read_regrets(study.store)
        known = {(key.phase, key.index): regret for key, regret in zip(
            found.keys, found.regret.tolist(), strict=True)}  # fmt: skip
    rows = table(tmp_path / "tuples.csv")
    for row in rows:
        regret, stakes = float(row["regret"]), float(row["stakes"])
        assert stakes == pytest.approx(regret + float(row["criticality"]))
        assert row["regret_how"] == "exact"
        if row["n"] == "1":
            assert regret == known[row["phase"], int(row["episode"])]
        else:  # the best of four sequences: twice the better action
            assert regret == pytest.approx(1.5 * known[row["phase"], int(row["episode"])])
    assert main(["status", str(wrong)]) == 0
    assert "a decision, another action is better at" in capsys.readouterr().out


class Gamble(gym.Env[np.ndarray, int]):
    """Each step, action 0 pays 0, action 1 pays 1 on average, action 2 pays 0 on average; ± 1."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        noise = float(self.np_random.choice([-1.0, 1.0]))
        pay = 0.0 if action == 0 else float(action == 1) + noise
        return np.full(1, self.steps, np.float32), pay, self.steps == 12, False, {}


def of_three(observations: np.ndarray) -> np.ndarray:
    return np.tile(np.array([1.0, 0.5, 0.0], np.float32), (len(observations), 1))


def test_where_the_world_is_random_regret_is_averaged(tmp_path: Path) -> None:
    """c = −1/3, g = 1, s = 2/3 at every moment; the best of lucky trials would say g = 2."""
    settings = {"n_values": (1, 2), "gamma": 0.5, "trials": 48}
    with sm.Study.create(tmp_path, Gamble, of_three, settings, scores="logits") as study:
        study.collect(40, 0, workers=1)
        assert not study.diagnosis["environment_deterministic"]
        found = read_regrets(study.store)
        study.export(tmp_path / "tuples.csv")
    assert found.how == "averaged"
    error = found.regret.std(ddof=1) / np.sqrt(len(found.regret))
    assert found.regret.mean() == pytest.approx(1, abs=4 * error + 1e-9)
    assert found.criticality.mean() == pytest.approx(-1 / 3, abs=0.1)
    longer = [row for row in table(tmp_path / "tuples.csv") if row["n"] == "2"]
    assert {row["regret"] for row in longer} == {""}


def test_under_a_mask_only_legal_actions_compete(tmp_path: Path) -> None:
    """At even steps 3, 1 and 0 are to be had, at odd ones 3 and 2."""

    def poor(observations: np.ndarray) -> np.ndarray:
        return np.tile(np.array([0.0, 1.0, 2.0, 3.0], np.float32), (len(observations), 1))

    policy = sm.load_policy(poor, kind="logits")
    policy.uses_mask = True
    settings = {"n_values": (1,), "gamma": 0.5}
    with sm.Study.create(tmp_path, Masked, policy, settings) as study:
        study.collect(30, 0, workers=1)
        found = read_regrets(study.store)
        assert study.environment["masked"] is True
    even = found.steps % 2 == 0
    assert even.any()
    assert not even.all()
    assert found.regret == pytest.approx(np.where(even, 3.0, 1.0))
    assert found.stakes == pytest.approx(np.where(even, 3 - 4 / 3, 0.5))


def test_a_box_of_actions_is_sampled(tmp_path: Path) -> None:
    class Pull(gym.Env[np.ndarray, np.ndarray]):
        observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: np.ndarray) -> Any:
            self.steps += 1
            return np.full(1, self.steps, np.float32), float(action[0]), self.steps == 9, False, {}

    still = sm.load_policy(lambda o: np.zeros((len(o), 1), np.float32), kind="actions")
    settings = {"n_values": (1,), "gamma": 0.5, "selection_proxy": "steps"}
    proxy = sm.register_proxy("steps", lambda scores, history, n: float(history[-1][0]),
                              kinds=["actions"], history=1)  # fmt: skip
    with sm.Study.create(tmp_path, Pull, still, settings, proxies=[proxy]) as study:
        study.collect(10, 0, workers=1)
        found = read_regrets(study.store)
    assert found.how == "sampled"
    assert (found.regret > 1 - 2 * 2 / 48).all()  # the highest of 48 strata of [−1, 1]
    assert (found.regret <= 1).all()


def test_refusals(tmp_path: Path) -> None:
    settings = {"n_values": (2,), "gamma": 0.5, "trials": 4}
    with sm.Study.create(tmp_path / "a", make_branching, always_first, settings,
                         scores="logits") as study:  # fmt: skip
        study.collect(3, 0, workers=1)
        with pytest.raises(StudyIncomplete, match="compare single actions.*measures n = 2 only"):
            read_regrets(study.store)
        assert study.status().regret is None

    def two(observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 2, 1), np.float32)

    sampled = {"n_values": (1,), "gamma": 0.5, "trials": 2, "action_choice": "sampled",
               "max_episode_steps": 30}  # fmt: skip
    with sm.Study.create(tmp_path / "b", "Pendulum-v1", two, sampled, scores="gaussian") as study:
        study.collect(2, 0, workers=1)
        with pytest.raises(StudyIncomplete, match="the actions cannot be enumerated"):
            read_regrets(study.store)
    with (
        sm.Study.create(tmp_path / "c", make_branching, always_first, EXACT, scores="logits") as s,
        pytest.raises(StudyIncomplete, match="no moment of the study in .* shows a regret"),
    ):
        read_regrets(s.store)


def test_a_masked_world_with_chance_is_refused(tmp_path: Path) -> None:
    class Chancy(Masked):
        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, reward + float(self.np_random.random()), *rest

    policy = sm.load_policy(lambda o: np.tile(np.eye(4, dtype=np.float32)[0], (len(o), 1)),
                            kind="logits")  # fmt: skip
    policy.uses_mask = True
    with sm.Study.create(tmp_path, Chancy, policy, {"n_values": (1,), "gamma": 0.5}) as study:
        study.collect(3, 0, workers=1)
        with pytest.raises(StudyIncomplete, match="which of the actions that the mask allows"):
            read_regrets(study.store)
