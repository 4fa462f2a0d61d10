"""The share of regret that a ranking captures, by hand and in bands."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.validation.capture import captured, captured_with_bands


def test_what_a_ranking_captures() -> None:
    regret = np.array([4.0, 3.0, 2.0, 1.0, 0.0])
    assert captured(regret, regret, 0.2) == 0.4
    assert captured(-regret, regret, 0.4) == pytest.approx(0.1)
    assert captured(np.zeros(5), regret, 0.3) == pytest.approx(0.3)
    assert captured(regret, regret, 0.3) == pytest.approx((4 + 1.5) / 10)
    assert captured(np.array([1.0, 1, 0, 0, 0]), regret, 0.2) == pytest.approx(0.35)
    assert np.isnan(captured(regret, np.zeros(5), 0.2))
    assert captured(regret, regret, 1.0) == pytest.approx(1)


def test_bands_hold_what_they_are_about() -> None:
    """A ranking that knows some of the regret: over many samples, bands hold its true share."""
    rng = np.random.default_rng(0)
    many = rng.exponential(size=400_000) ** 2
    truth = captured(many + 3 * rng.exponential(size=len(many)), many, 0.1)
    found_shares, held = [], 0
    for seed in range(30):
        gains = rng.exponential(size=300) ** 2
        values = gains + 3 * rng.exponential(size=300)
        groups = np.arange(300) // 2
        (found,) = captured_with_bands(values, gains, groups, (0.1,), seed=seed)
        assert found.low <= found.captured <= found.high
        found_shares.append(found.captured)
        held += found.low <= truth <= found.high
    assert np.mean(found_shares) == pytest.approx(truth, abs=0.04)
    assert held >= 25
    nothing = captured_with_bands(values, np.zeros(300), groups, (0.1,))[0]
    assert np.isnan([nothing.captured, nothing.low, nothing.high]).all()
