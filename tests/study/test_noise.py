"""The noise of the trials in a bound: by hand, against known laws, and against many more trials."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm
from safemargin.cli import main
from safemargin.core.records import Measurement
from safemargin.margins.fitting import fit_margins
from safemargin.study.findings import findings
from safemargin.study.noise import (
    ENOUGH,
    Noise,
    describe_noise,
    share_of_noise,
    times_needed,
    variance,
)


def test_by_hand() -> None:
    # In the order of the proxy: 1, 3, 2. Half the mean squared difference is (4 + 1) / 4.
    proxies, losses = np.array([0.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])
    assert share_of_noise(proxies, losses, np.array([0.5, 0.25, 0.0])) == 0.25 / 1.25
    assert share_of_noise(proxies, losses, np.full(3, 9.0)) == 1.0
    assert share_of_noise(proxies, np.ones(3), np.zeros(3)) == 0.0
    assert share_of_noise(proxies, np.ones(3), np.ones(3)) == 1.0
    assert times_needed(0.5) == pytest.approx(0.9025 / 0.0975)  # leaves 1 − 0.95² of the variance
    assert times_needed(0.05) == 1.0
    assert times_needed(0.95) is None


def test_the_variance_of_an_estimate() -> None:
    estimate: Any = type("", (), {"exact": False})
    measured = Measurement(estimate, np.array([1.0, 3.0]), np.array([5.0]), 1)
    assert variance(measured) == 1.0  # losses of 4 and 2, whose variance is 2, in two trials
    estimate.exact = True
    assert variance(measured) == 0.0


@pytest.mark.parametrize("law", ["normal", "long tail"])
def test_a_bound_without_noise_lies_as_much_nearer_as_stated(law: str) -> None:
    """20 % of the variance is noise: for a normal law, 1 − √0.8 of the bound's distance."""
    distances: list[list[float]] = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        proxies = rng.random(4000)
        own = rng.normal(size=4000) if law == "normal" else rng.exponential(size=4000)
        noise = 0.5 * rng.normal(size=4000)
        share = share_of_noise(proxies, own + noise, np.full(4000, 0.25))
        assert share == pytest.approx(0.25 / 1.25, abs=0.02)
        times = times_needed(0.2)
        assert times is not None
        distances.append([])
        for losses in (own, own + noise, own + noise / np.sqrt(times)):
            bound = fit_margins(proxies, losses[:, None], [1], 0.9).bound
            distances[-1].append(float(np.mean(bound.upper[0])) - float(np.median(losses)))
    without, noisy, less = np.mean(distances, axis=0)
    if law == "normal":
        assert 1 - without / noisy == pytest.approx(1 - np.sqrt(0.8), abs=0.025)
        assert 1 - without / less == pytest.approx(0.05, abs=0.025)
    else:
        assert 0 < 1 - without / noisy < 1 - np.sqrt(0.8)


class Costs(gym.Env[Any, Any]):
    """One action of four is free, and the others cost more together; `size` says how much, when."""

    action_space = gym.spaces.Discrete(4)
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.size = 0, 6 * self.np_random.random()
        self.fault = False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        cost = self.size * (int(action) + 3 * (self.fault and action > 0))
        self.fault = action > 0
        seen = np.full(1, self.t, np.float32)
        return seen, 0.01 * self.size - float(cost), self.t >= 12, False, {}


def first(observations: Any) -> Any:
    return np.eye(4)[0] * (1 + observations)  # the first action, more surely the later it is


def collected(folder: Path, trials: int, **more: Any) -> sm.Study:
    settings = {"gamma": 0.5, "n_values": (4,), **more}
    if settings.get("trial_plan") == "paper":
        settings |= {"min_trials": trials, "max_trials": trials, "sampling_error": 0.01}
    else:
        settings["trials"] = trials
    study = sm.Study.create(folder, Costs, first, settings, scores="logits")
    study.collect(40, 0, workers=1)
    return study


@pytest.mark.parametrize("plan", ["paper", "fixed"])
def test_as_much_noise_as_many_more_trials_show(tmp_path: Path, plan: Any) -> None:
    with (
        collected(tmp_path / "few", 8, trial_plan=plan) as few,
        collected(tmp_path / "many", 250, trial_plan=plan) as many,
    ):
        noise, better = few.status().noise, many.status().noise
        assert noise is not None
        assert better is not None
        blurred, true = few.tuples().criticalities[:, 0], many.tuples().criticalities[:, 0]
    found = np.mean((blurred - true) ** 2) / np.var(blurred)
    if plan == "paper":
        assert found / 2 < noise.of_variance < 2 * found
        assert noise.times == pytest.approx(times_needed(noise.of_variance))
    else:  # stratified: an upper estimate
        assert found < noise.of_variance
    assert better.of_variance < noise.of_variance / 10
    assert (noise.n, noise.trials) == (4, 8)


def test_status_fit_and_report_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = str(tmp_path / "study"), str(tmp_path / "margins.json")
    with collected(tmp_path / "study", 3) as study:
        status = study.status()
        assert status.noise is not None
        described = describe_noise(status.noise, study.settings)
        assert described is not None
        assert ("note", described[1]) in findings(study, status, None)
    assert "% of the distance from the typical loss to a bound is noise of the" in described[1]
    assert "(n = 4, 3 trials a moment); --trials " in described[1]
    assert main(["status", folder]) == 0
    assert f"noise        {described[1]}\n" in capsys.readouterr().out
    assert main(["fit", folder, "-o", file, "--confidence", "0.5"]) == 0
    assert f"{described[1]}\n" in capsys.readouterr().out
    assert main(["fit", folder, "-o", file, "--confidence", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["noise"]["of_bound"] == status.noise.of_bound
    single = ["--estimand", "single-run", "--json"]  # its bound holds no mean of trials
    assert main(["fit", folder, "-o", file, "--confidence", "0.5", *single]) == 0
    assert json.loads(capsys.readouterr().out)["noise"] is None


def test_what_is_advised() -> None:
    fixed, paper = sm.Settings(trials=48), sm.Settings(trial_plan="paper", sampling_error=0.2)
    noise = Noise(n=8, trials=48.0, of_variance=0.3, of_bound=0.163, times=3.97)
    small = Noise(n=8, trials=48.0, of_variance=0.01, of_bound=0.005, times=1.0)
    texts = [describe_noise(each, plan) for each in (noise, small) for plan in (fixed, paper)]
    assert [text and text[0] for text in texts] == [False, False, True, True]
    assert texts[0] is not None
    assert texts[0][1].startswith("up to about 16% of the distance from")
    assert texts[0][1].endswith("; --trials 200 in a new study would leave 5%")
    assert texts[1] is not None
    assert "; 4 times as many (a lower --sampling-error, and " in texts[1][1]
    assert texts[2] is not None
    assert texts[2][1].startswith("less than 1% of the distance")
    assert texts[2][1].endswith("; more trials would change little")
    assert describe_noise(None, fixed) is None
    hidden = describe_noise(replace(noise, of_variance=0.95, times=None), fixed)
    assert hidden is not None
    assert hidden[1].endswith("; take at least 10 times as many in a new study, and look again")


def test_few_moments_say_nothing(tmp_path: Path) -> None:
    settings = sm.Settings(gamma=0.5, n_values=(4,), trials=8)
    with sm.Study.create(tmp_path / "few", Costs, first, settings, scores="logits") as study:
        assert study.collect(ENOUGH - 1, 0, workers=1).noise is None
        assert study.collect(ENOUGH, 0, workers=1).noise is not None
