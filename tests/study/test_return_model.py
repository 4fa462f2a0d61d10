"""The model of an episode's return finds the steps that decide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import WORLDS

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import StudyIncomplete
from safemargin.study import measure_fidelity
from safemargin.study.return_model import learn_return

PRIZE_AT, STEPS = 5, 12


class Prize(gym.Env[np.ndarray, int]):
    """Pays at step 5 alone, as much as its first observation said; every step looks different."""

    observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.prize, self.at = float(self.np_random.normal()), 0
        return self._look(), {}

    def step(self, action: int) -> Any:
        paid = self.prize * (int(action) == 0) if self.at == PRIZE_AT else 0.0
        self.at += 1
        return self._look(), paid, self.at == STEPS, False, {}

    def _look(self) -> np.ndarray:
        shown = self.prize if self.at == PRIZE_AT else 0.0
        noise = np.cos(7.0 * self.at)
        return np.array([shown, noise, 0.0], np.float32)


def scores(rows: np.ndarray) -> np.ndarray:
    """Prefers action 0, by as much as is shown; the second action scores the noise."""
    return np.stack([5 + rows[:, 0], rows[:, 1]], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> sm.Study:
    made = sm.Study.create(
        tmp_path_factory.mktemp("prize") / "study",
        Prize,
        sm.load_policy(scores, kind="q"),
        {"n_values": (1,), "gamma": 0.9},
    )
    made.collect(natural=40, spread=0, workers=1)
    return made


def test_the_step_that_decides_is_the_most_important(study: sm.Study) -> None:
    found = learn_return(study.store)
    assert (found.episodes, found.plays, found.proxy) == (40, 40, "learned-return")
    assert found.correlation > 0.99
    at = [
        int(np.argmax(trace.values))
        for trace in study.store.proxy_traces("learned-return")
        if abs(trace.total_reward) > 0.7  # small prizes decide little
    ]
    assert len(at) > 10
    assert np.mean(np.array(at) == PRIZE_AT) > 0.9
    again = learn_return(study.store)
    assert again == found
    rows = {row.ranking: row for row in measure_fidelity(study, engine="local").rows}
    best = rows["true criticality (of the steps named)"]
    assert best.loss >= rows["learned-return"].loss
    assert best.gain >= max(row.gain for row in rows.values()) - 1e-12


class Flat(Prize):
    """Pays nothing."""

    def step(self, action: int) -> Any:
        seen, _, *others = super().step(action)
        return seen, 0.0, *others


def test_equal_returns_teach_nothing(tmp_path: Path) -> None:
    policy = sm.load_policy(scores, kind="q")
    with sm.Study.create(tmp_path / "study", Flat, policy, {"n_values": (1,)}) as made:
        made.collect(natural=20, spread=0, workers=1)
        with pytest.raises(StudyIncomplete, match="have the same return .0., so a model of it"):
            learn_return(made.store)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study"
    command = ["collect", f"{WORLDS}:make_swerving", f"{WORLDS}:swerve", "-o", path, "--n", "1"]
    command += ["--scores", "logits", "--natural", "4", "--spread", "0", "--workers", "1"]
    assert main([str(word) for word in command]) == 0
    assert main(["learn", str(path), "--target", "return"]) != 0
    refusal = capsys.readouterr().err
    assert "a model of returns takes at least 20 distinct episodes, and the study in" in refusal
    assert main(["learn", str(path), "--target", "return", "-o", "x.json"]) == 2
    assert "-o writes a ranking of decisions" in capsys.readouterr().err
