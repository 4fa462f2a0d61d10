"""The Student-t rule on arrays worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safemargin.core.settings import Settings
from safemargin.criticality.stopping import StudentRule, student_quantile


def fed(losses: list[float], **settings: float) -> StudentRule:
    """A rule that takes losses until it stops."""
    rule = StudentRule(Settings(trial_plan="paper", **settings))  # type: ignore[arg-type]
    for loss in losses:
        if rule.stopped:
            break
        rule.add(loss)
    return rule


def test_quantiles_of_the_printed_tables() -> None:
    assert student_quantile(0.95, 10) == pytest.approx(2.262157, abs=1e-6)  # 9 degrees of freedom
    assert student_quantile(0.95, 2) == pytest.approx(12.706205, abs=1e-6)
    assert student_quantile(0.99, 31) == pytest.approx(2.749996, abs=1e-6)
    assert student_quantile(0.95, 10**9) == pytest.approx(1.959964, abs=1e-6)


def test_half_width_by_hand() -> None:
    # losses 0 … 9: mean 4.5, Σ(x − 4.5)² = 82.5, stdev* = √(82.5 / 9) = 3.02765
    # half-width = 2.262157 · 3.02765 / √10 = 2.165851
    rule = fed([float(loss) for loss in range(10)], sampling_error=0.2)
    assert rule.mean == pytest.approx(4.5)
    assert rule.half_width == pytest.approx(2.165851, abs=1e-6)
    assert not rule.stopped


def test_equal_losses_stop_at_the_minimum() -> None:
    rule = fed([1.5] * 100)
    assert (rule.trials, rule.mean, rule.half_width) == (10, 1.5, 0.0)
    assert rule.sure


def test_never_before_the_minimum_and_then_as_soon_as_possible() -> None:
    # Alternating ±a: stdev* = a √(N / (N − 1)) for even N.
    # For a = 0.3: half-width at N = 10 is 2.2622 · 0.3 / √9 = 0.2262 > 0.2;
    # at N = 11 the mean is 0.3/11 and stdev* = 0.31464: 2.2281 · 0.31464 / √11 = 0.21138 > 0.2;
    # at N = 12: 2.2010 · 0.3 / √11 = 0.19909 ≤ 0.2.
    rule = fed([0.3, -0.3] * 50)
    assert rule.trials == 12
    assert rule.half_width == pytest.approx(0.19909, abs=1e-5)


def test_the_cap_is_reported() -> None:
    rule = fed([0.0, 100.0] * 500, max_trials=40)
    assert rule.trials == 40
    assert rule.stopped
    assert not rule.sure


def test_fewer_than_two_trials_know_nothing() -> None:
    rule = StudentRule(Settings(trial_plan="paper"))
    assert rule.half_width == math.inf
    rule.add(1.0)
    assert rule.half_width == math.inf


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_agrees_with_numpy(losses: list[float]) -> None:
    rule = StudentRule(Settings(trial_plan="paper", max_trials=100))
    for loss in losses:
        rule.add(loss)
    deviation = np.std(losses, ddof=1)
    expected = student_quantile(0.95, len(losses)) * deviation / math.sqrt(len(losses))
    assert rule.mean == pytest.approx(np.mean(losses), rel=1e-9, abs=1e-9)
    assert rule.half_width == pytest.approx(expected, rel=1e-6, abs=1e-6)
