"""Settings: the horizon, the checks, and the canonical text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput


@pytest.mark.parametrize(
    ("gamma", "error", "horizon"),
    [
        (0.99, 0.01, 459),  # ln 0.01 / ln 0.99 = 458.21…
        (0.9, 0.01, 44),  # 43.71
        (0.5, 0.25, 2),  # exactly 2
        (0.5, 0.3, 2),  # 1.74
    ],
)
def test_horizon(gamma: float, error: float, horizon: int) -> None:
    assert Settings(gamma=gamma, horizon_error=error, n_values=(1,)).horizon == horizon


@given(gamma=st.floats(0.01, 0.999), error=st.floats(0.001, 0.9))
def test_horizon_is_the_first_step_at_which_the_error_is_met(gamma: float, error: float) -> None:
    horizon = Settings(gamma=gamma, horizon_error=error, n_values=(1,)).horizon
    assert gamma**horizon <= error * (1 + 1e-9)
    assert gamma ** (horizon - 1) >= error * (1 - 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.0}, "gamma must lie between 0 and 1, got 1.0"),
        ({"n_values": ()}, "n_values must be increasing whole numbers, starting at 1 or above"),
        ({"n_values": (2, 1)}, "n_values must be increasing"),
        ({"n_values": (0, 1)}, "n_values must be increasing whole numbers, starting at 1 or above"),
        (
            {"n_values": (1.9, 2.7)},
            r"n_values must be .* whole numbers, starting at 1 or above, got \[1.9, 2.7\]",
        ),
        ({"n_values": (1, float("inf"))}, r"whole numbers, starting at 1 or above, got \[1, inf\]"),
        ({"n_values": (1, float("nan"))}, r"whole numbers, starting at 1 or above, got \[1, nan\]"),
        ({"n_values": (1, "2")}, r"whole numbers, starting at 1 or above, got \[1, '2'\]"),
        ({"n_values": (1, None)}, r"whole numbers, starting at 1 or above, got \[1, None\]"),
        ({"horizon_error": 0}, "horizon_error must lie between 0 and 1"),
        ({"trial_plan": "paper", "sampling_error": 0}, "sampling_error must be above 0"),
        ({"trial_plan": "paper", "sampling_error": float("nan")}, "sampling_error must be above 0"),
        (
            {"sampling_error": 0.5},
            "sampling_error has no meaning with trial_plan='fixed'; set trials",
        ),
        ({"max_trials": 50}, "max_trials has no meaning with trial_plan='fixed'"),
        (
            {"trial_plan": "paper", "trials": 50},
            "trials has a meaning only with trial_plan='fixed'",
        ),
        ({"trial_plan": "papr"}, "trial_plan 'papr' is unknown; did you mean 'paper'"),
        ({"trial_plan": "anytime"}, "trial_plan 'anytime' needs largest_loss"),
        ({"trial_plan": "rule-of-three"}, "trial_plan 'rule-of-three' needs largest_loss"),
        (
            {"trial_plan": "anytime", "largest_loss": 1.0, "smallest_loss": 2.0},
            r"largest_loss \(1.0\) must be above smallest_loss \(2.0\)",
        ),
        ({"trials": 1}, "trials must be at least 2"),
        (
            {"trial_plan": "rule-of-three", "largest_loss": 100.0},
            "needs 1498 trials for a largest_loss of 100, more than max_trials",
        ),
        ({"sampling_confidence": 1}, "sampling_confidence must lie between 0 and 1"),
        ({"min_trials": 1}, "min_trials must be at least 2"),
        ({"max_trials": 5}, r"max_trials \(5\) must not be below min_trials \(10\)"),
        ({"action_choice": "gredy"}, "action_choice 'gredy' is unknown; did you mean 'greedy'"),
        ({"epsilon": 0.1}, "epsilon has a meaning only with action_choice='epsilon-greedy'"),
        ({"action_choice": "epsilon-greedy", "epsilon": 2}, r"epsilon must lie in \[0, 1\]"),
        ({"gamma": 0.5, "n_values": [1, 32]}, "n = 32 is longer than the horizon of 7 steps"),
        ({"opening": -1}, "opening must be at least 0"),
        ({"exclude_last": -1}, "exclude_last must be at least 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Settings(**change)  # type: ignore[arg-type]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="'gama' is unknown; did you mean 'gamma'"):
        Settings.from_mapping({"gama": 0.9})


def test_round_trip_and_differences() -> None:
    settings = Settings(gamma=0.9, n_values=(1, 3), opening=4)
    assert Settings.from_json(settings.to_json()) == settings
    assert settings.differences(Settings(gamma=0.9, n_values=(1, 3))) == ["opening: 4, not 0"]


def test_the_last_steps_left_out_follow_the_largest_n() -> None:
    assert Settings().excluded_steps == 32
    assert Settings(n_values=(1, 8)).excluded_steps == 8
    assert Settings(exclude_last=0).excluded_steps == 0


def test_whole_numbers_may_be_written_in_any_way() -> None:
    ways = np.array([1, 2]), [1.0, 2.0], (np.int32(1), np.float64(2))
    assert all(Settings(n_values=values) == Settings(n_values=(1, 2)) for values in ways)
    assert Settings(n_values=ways[0]).to_json() == Settings(n_values=(1, 2)).to_json()


def test_the_default_n_reach_as_far_as_the_horizon() -> None:
    settings = Settings(gamma=0.9, horizon_error=0.05)
    assert (settings.horizon, settings.n_values) == (29, (1, 2, 4, 8, 16))
    assert Settings(gamma=0.5).n_values == (1, 2, 4)
    assert Settings().n_values == (1, 2, 4, 8, 16, 32)
    assert Settings(gamma=0.01).n_values == (1,)
    with pytest.raises(InvalidInput, match="n = 32 is longer than the horizon of 29 steps"):
        Settings(gamma=0.9, horizon_error=0.05, n_values=(1, 2, 4, 8, 16, 32))
