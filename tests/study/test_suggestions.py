"""What would be cheaper: arithmetic on a forecast made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from safemargin.core.settings import Settings
from safemargin.study.forecast import Forecast, Range, StageCost
from safemargin.study.suggestions import savings


def stage(n: int, *, trials: float, seconds: float, pieces: int = 100) -> StageCost:
    total = Range(trials * pieces, trials * pieces, trials * pieces)
    spent = Range(seconds, seconds, seconds)
    return StageCost(n, pieces, 12, total, total, spent, 0.0)


def made(*stages: StageCost, natural: int = 50, spread: int = 50) -> Forecast:
    def total(name: str) -> Range:
        return sum((getattr(one, name) for one in stages), Range(0, 0, 0))

    return Forecast(
        wanted={"natural": natural, "spread": spread},
        left={"natural": natural, "spread": spread},
        sample={"natural": 6, "spread": 6},
        stages=stages,
        trials=total("trials"),
        steps=total("steps"),
        worker_seconds=total("worker_seconds"),
        disk_bytes=1.0,
    )


PLAN = made(
    stage(0, trials=0, seconds=100),
    stage(1, trials=6, seconds=100),
    stage(8, trials=48, seconds=300),
    stage(32, trials=48, seconds=500),
)


def found(plan: Forecast, settings: Settings, *, resumes: bool = False) -> dict[str, Any]:
    waiting = {"waiting": lambda seconds: 10 + seconds / 2, "resumes": resumes}
    return {one.change: one for one in savings(plan, settings, **waiting)}


def test_by_hand() -> None:
    suggested = found(PLAN, Settings(n_values=(1, 8, 32)))
    # 1,000 seconds of one worker; half of them and 10 more are waited for.
    assert list(suggested) == ["--n 1,8", "--natural 25 --spread 25", "--trials 24"]
    assert suggested["--n 1,8"].seconds == 10 + 500 / 2
    assert suggested["--n 1,8"].remark == "n = 32 takes 50% of it; a margin of 32 would be 8"
    assert suggested["--natural 25 --spread 25"].seconds == 10 + 500 / 2
    assert "confidence up to 0.95" in suggested["--natural 25 --spread 25"].remark
    # n = 1 tries its 6 actions either way; the 800 seconds of the others are halved at best.
    assert suggested["--trials 24"].seconds == 10 + 600 / 2
    assert suggested["--trials 24"].at_least


def test_a_doubled_error_takes_a_quarter_of_the_trials_but_never_fewer_than_the_least() -> None:
    settings = Settings(n_values=(1, 8), trial_plan="paper", sampling_error=0.5, min_trials=10)
    plan = made(stage(1, trials=10, seconds=100), stage(8, trials=400, seconds=400))
    assert found(plan, settings)["--sampling-error 1"].seconds == 10 + (100 + 100) / 2


def test_a_resumed_study_keeps_its_settings() -> None:
    assert list(found(PLAN, Settings(n_values=(1, 8, 32)), resumes=True)) == [
        "--natural 25 --spread 25"
    ]


def test_small_savings_are_not_suggested() -> None:
    plan = made(
        stage(1, trials=6, seconds=990), stage(2, trials=48, seconds=10), natural=1, spread=0
    )
    assert found(plan, Settings(n_values=(1, 2))) == {}


def test_too_few_moments_are_named() -> None:
    plan = made(stage(1, trials=48, seconds=100), natural=10, spread=10)
    suggested = found(plan, Settings(n_values=(1,)))
    assert suggested["--natural 5 --spread 5"].remark.startswith("too few for a confidence of 0.9")


@pytest.mark.parametrize("trials", [2, 3])
def test_two_trials_cannot_be_halved(trials: int) -> None:
    assert "--trials 1" not in found(PLAN, Settings(n_values=(1, 8, 32), trials=trials))
