"""Does a study say so where its losses are rare and large, and only there?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm
from safemargin.cli import main
from safemargin.core.settings import Settings
from safemargin.criticality.plans import rule_of
from safemargin.study.findings import findings
from safemargin.study.rare_losses import OFTEN, describe_rare_losses, rests_on_few

Draw = Callable[[np.random.Generator], float]


def skewed(n: int) -> Draw:
    """n actions, of which one of twenty costs 2 and another 0.3."""
    return lambda rng: float(rng.choice([2, 0.3] + [0] * 18, size=n).sum())


PAPER = Settings(trial_plan="paper", sampling_error=0.35)  # for losses with a deviation of 1
PRECISE = Settings(trial_plan="paper", sampling_error=0.1)
FIXED = Settings()

LAWS: dict[str, tuple[Draw, float, Settings, float, float, bool]] = {
    # draw, mean, settings, at least and at most this share of half-widths hold, reported
    "normal": (lambda rng: rng.normal(1), 1.0, PAPER, 0.89, 0.99, False),
    "uniform": (lambda rng: 3.46 * rng.random(), 1.73, PAPER, 0.89, 0.99, False),
    "fixed, normal": (lambda rng: rng.normal(1), 1.0, FIXED, 0.89, 0.99, False),
    "exponential": (lambda rng: rng.exponential(), 1.0, PAPER, 0.82, 0.95, False),
    "fixed, one in five": (lambda rng: float(rng.random() < 0.2), 0.2, FIXED, 0.89, 0.99, False),
    "one in twenty": (lambda rng: 4.6 * (rng.random() < 0.05), 0.23, PAPER, 0.25, 0.55, True),
    "one in ten": (lambda rng: 3.3 * (rng.random() < 0.1), 0.33, PAPER, 0.5, 0.75, True),
    "log-normal": (lambda rng: rng.lognormal(0, 1.5) / 9, 3.08 / 9, PAPER, 0.55, 0.85, True),
    "fixed, one in fifty": (lambda rng: float(rng.random() < 0.02), 0.02, FIXED, 0.5, 0.75, True),
    "skewed, n = 1": (skewed(1), 0.115, PRECISE, 0.38, 0.58, True),
    "skewed, n = 2": (skewed(2), 0.23, PRECISE, 0.5, 0.72, True),
}


@pytest.mark.parametrize("name", LAWS)
def test_what_is_reported_is_what_covers_too_little(name: str) -> None:
    draw, mean, settings, least, most, reported = LAWS[name]
    rng = np.random.default_rng(1)
    held, flagged = [], []
    for _ in range(300):
        rule, losses = rule_of(settings), []
        while not rule.stopped:
            losses.append(draw(rng))
            rule.add(losses[-1])
        held.append(abs(rule.mean - mean) <= rule.half_width)
        if rule.half_width > 0:
            flagged.append(rests_on_few(np.array(losses)))
    assert least <= np.mean(held) <= most
    assert (describe_rare_losses(len(flagged), sum(flagged)) is not None) == reported
    assert (np.mean(flagged) >= OFTEN) == reported
    if not reported:
        assert np.mean(flagged) <= 0.03  # no near miss


def test_by_hand() -> None:
    few = np.array([0.0] * 45 + [2.0] * 3)
    assert rests_on_few(few)
    assert not rests_on_few(np.append(few, 2.0))  # four trials make all of it: three make 0.75
    assert rests_on_few(np.append(few, 0.5))  # 12 of 12.25
    assert describe_rare_losses(9, 9) is None
    assert describe_rare_losses(100, 19) is None
    text = describe_rare_losses(1000, 300)
    assert text is not None
    assert text.startswith("in 300 of 1,000 sampled estimates with any spread, at most 3 trials ")


class Costly(gym.Env[Any, Any]):
    """One action of twenty costs 2, another 0.3; or, if `even`, every action its number."""

    action_space = gym.spaces.Discrete(20)
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, *, even: bool = False) -> None:
        self.costs = np.arange(20) / 6 if even else np.array([0, 2, 0.3] + [0] * 17)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        seen = np.full(1, self.t, np.float32)
        return seen, 1 - float(self.costs[action]), self.t >= 30, False, {}


def first(observations: Any) -> Any:
    return np.tile(np.eye(20)[0], (len(observations), 1))


@pytest.mark.parametrize("even", [False, True])
def test_status_and_report_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], even: bool
) -> None:
    settings = Settings(
        trial_plan="paper", gamma=0.9, n_values=(1,), sampling_error=0.6 if even else 0.1
    )
    with sm.Study.create(
        tmp_path / "study", lambda: Costly(even=even), first, settings, scores="logits"
    ) as study:
        status = study.collect(20, 20, workers=1)
        assert 10 <= status.spread <= status.estimates - status.without_spread
        texts = [text for level, text in findings(study, status, None) if level == "note"]
    assert main(["status", str(tmp_path / "study")]) == 0
    out = capsys.readouterr().out
    start = f"in {status.resting_on_few} of {status.spread} sampled estimates with any spread"
    assert (f"half-widths  {start}, at most 3 trials make 90%" in out) == (not even)
    assert any(text.startswith(start) for text in texts) == (not even)
