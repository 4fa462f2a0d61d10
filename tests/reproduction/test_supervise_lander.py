"""The overseer of LunarLander: it plays the game again, and keeps to its budget."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

import safemargin as sm

pytest.importorskip("Box2D", reason="pip install box2d")
pytest.importorskip("pyarrow", reason="pip install 'safemargin[parquet]'")
sys.path.insert(0, str(ROOT / "reproduction"))

import supervise_lander as lander
from looking import Looker


def faller(observations: np.ndarray) -> np.ndarray:
    """Fires the main engine while it falls quickly, and nothing else."""
    scores = np.zeros((len(observations), 4), np.float32)
    scores[:, 0] = 0.5
    scores[:, 2] = observations[:, 3] < -0.3
    return scores


@pytest.fixture(scope="module")
def pilot() -> lander.Pilot:
    return lander.Pilot(sm.load_policy(faller, kind="logits"), {})


def nobody(values: Mapping[str, float], gain: Callable[[], tuple[float, int]]) -> bool:
    return False


def test_the_lookahead_is_what_a_second_game_shows(pilot: lander.Pilot) -> None:
    """Against plain steps: the same first 40 actions, then each action, then the agent."""
    env = lander.make()
    taken = [0, 2] * 20
    found = pilot.returns(11, taken)
    for action in range(4):
        env.reset(seed=11)
        for earlier in taken:
            env.step(earlier)
        total, chosen = 0.0, action
        for step in range(lander.LOOKAHEAD):
            observation, reward, terminated, truncated, _ = env.step(chosen)
            total += lander.GAMMA**step * float(reward)
            chosen = int(faller(observation[None])[0].argmax())
            if terminated or truncated:
                break
        assert found[action] == pytest.approx(total)
    assert len(set(found.round(6))) > 1


def test_nobody_changes_nothing_and_an_overseer_earns_more(pilot: lander.Pilot) -> None:
    alone = pilot.fly(nobody, 11)
    assert (alone.looked_at, alone.overruled) == (0, 0)
    env, total, decisions = lander.make(), 0.0, 0
    observation, _ = env.reset(seed=11)
    ended = False
    while not ended:
        action = int(faller(observation[None])[0].argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        total, decisions, ended = total + float(reward), decisions + 1, terminated or truncated
    assert (alone.reward, alone.decisions) == (pytest.approx(total, abs=1e-3), decisions)
    helped = pilot.fly(Looker("random", 0.05, np.array([0.0]), (1, 0)), 11)
    assert 0 < helped.overruled <= helped.looked_at
    assert helped.reward > alone.reward


@pytest.mark.parametrize("strategy", ["random", "proxy", "regret", "gain"])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_looks_are_a_twentieth_whatever_the_numbers(strategy: str, shift: float) -> None:
    """Even if the numbers are higher than they were in other games."""
    rng = np.random.default_rng(0)
    for reference in (rng.normal(size=2_000), np.round(rng.normal(size=2_000))):
        look = Looker(strategy, 0.05, reference, (1, 0))
        picked = [
            look({"proxy": value, "regret": value}, lambda value=value: (value, 0))
            for value in (rng.choice(reference, 1_000) + shift).tolist()
        ]
        assert sum(picked) == pytest.approx(50, abs=8)


def test_games_are_kept_and_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lander, "PILOT_GAMES", 1)
    monkeypatch.setattr(lander, "PILOT_EVERY", 1_000)
    monkeypatch.setattr(lander.Ranking, "load", lambda path: None)
    pilot = lander.Pilot(sm.load_policy(faller, kind="logits"), {})
    options = argparse.Namespace(
        output=tmp_path / "kept.json",
        minutes=9,
        games=1,
        budget=0.05,
        strategies=["nobody", "stakes"],
    )
    lander.supervise(pilot, options)
    kept = json.loads(options.output.read_text())
    assert [one["strategy"] for one in kept["played"]] == ["nobody"]  # nothing was learned
    before = kept["played"][0]
    options.games = 2
    lander.supervise(pilot, options)
    kept = json.loads(options.output.read_text())
    assert kept["played"][0] == before
    assert [one["game"] for one in kept["played"]] == [0, 1]
    other = lander.Pilot(pilot.policy, {})
    monkeypatch.setattr(lander, "LOOKAHEAD", 9)
    with pytest.raises(lander.Refused, match="is about other games, .*; move it away first"):
        lander.supervise(other, options)
