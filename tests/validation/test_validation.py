"""Held-out coverage (Table I) and percentile-error bounds (Table III)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from helpers.margins import measured_tuples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from safemargin.errors import InvalidInput
from safemargin.margins.methods import fit_bound
from safemargin.validation import local_sample_size, percentile_error_bound, validate
from safemargin.validation.validating import validate_tuples


@pytest.mark.parametrize(
    ("sample_size", "printed"), [(41.53, "0.09"), (51.07, "0.08"), (35.09, "0.10"), (39.45, "0.09")]
)
def test_the_numbers_of_table_three(sample_size: float, printed: str) -> None:
    assert f"{percentile_error_bound(sample_size):.2f}" == printed
    loose = percentile_error_bound(sample_size, tight=False)
    assert loose == pytest.approx(0.5 * 1.645 / math.sqrt(sample_size), rel=1e-3)


@settings(deadline=None)
@given(st.floats(0.5, 1e6), st.floats(0.5, 0.999), st.floats(0.6, 0.999))
def test_the_tight_bound_solves_its_equation(size: float, beta: float, alpha: float) -> None:
    bound = percentile_error_bound(size, beta, alpha)
    true = beta - bound
    assert 0 <= true <= beta
    assert bound == pytest.approx(
        float(norm.ppf(alpha)) * math.sqrt(true * (1 - true) / size), abs=1e-9
    )
    assert bound <= percentile_error_bound(size, beta, alpha, tight=False) + 1e-12


def test_local_sample_size_by_hand() -> None:
    # 360 moments over a range of 9 are 40 per unit; a box of width 0.5 holds 20 of them.
    assert local_sample_size(360, 0.5, 1.0, 10.0, kernel="box", edge=False) == 20
    assert local_sample_size(360, 0.5, 1.0, 10.0, kernel="box") == 10
    root = math.sqrt(2 * math.pi)
    assert local_sample_size(360, 0.5, 1.0, 10.0, edge=False) == pytest.approx(20 * root)
    assert local_sample_size(360, 0.5, 1.0, 10.0) == pytest.approx(10 * root)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: percentile_error_bound(0), "sample size must be above 0, got 0"),
        (lambda: percentile_error_bound(math.nan), "sample size must be above 0, got nan"),
        (lambda: percentile_error_bound(9, 1.0), "confidence must lie between 0 and 1, got 1.0"),
        (lambda: percentile_error_bound(9, 0.9, 0.4), "alpha must be at least 0.5 and below 1"),
        (
            lambda: local_sample_size(9, 1, 0, 1, kernel="bix"),  # type: ignore[arg-type]
            "kernel 'bix' is unknown; did you mean 'box'",
        ),
        (lambda: local_sample_size(9, 0, 0, 1), "needs moments ≥ 0, bandwidth > 0 and low < high"),
        (lambda: local_sample_size(9, 1, 1, 1), "needs moments ≥ 0, bandwidth > 0 and low < high"),
    ],
)
def test_bad_numbers(call: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        call()


def hand_made() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """20 natural and 20 spread moments; the first 16 of each lose exactly 1 (n = 1) and 0 (n = 2).

    So the fitted bound is exactly 1 and 0, whatever the kernels do.
    """
    natural, spread = np.zeros((20, 2)), np.zeros((20, 2))
    natural[:16, 0] = spread[:16, 0] = 1
    natural[16:, 0] = [1.0, 0.5, 1.5, 1.0]  # 3 of 4 at or below 1
    spread[16:, 0] = [2.0, 2.0, 0.0, 1.0]  # 2 of 4
    natural[16:, 1] = [-1.0, 0.0, 0.0, 0.0]  # 4 of 4 at or below 0
    spread[16:, 1] = [0.0, 0.0, 1e-9, 0.0]  # 3 of 4
    proxies = np.arange(20.0)
    return proxies, natural, proxies / 2, spread


def test_validate_by_hand() -> None:
    result = validate(*hand_made(), (1, 2), method="paper")
    # 16 + 16 in training, ⌊0.05 · 32⌋ = 1 dropped: the natural moment with proxy 15.
    assert (result.train_moments, result.test_moments) == (31, 8)
    first, second = result.coverage
    assert (first.n, first.tested, first.succeeded) == (1, 8, 5)
    assert (first.natural_succeeded, first.natural_tested) == (3, 4)
    assert (first.spread_succeeded, first.spread_tested) == (2, 4)
    assert first.success_rate == 5 / 8
    assert first.percentile_error == pytest.approx(0.95 - 5 / 8)
    assert first.standard_error == pytest.approx(math.sqrt(0.95 * 0.05 / 8))
    assert (second.n, second.succeeded) == (2, 7)
    # Training proxies end at 14; the natural tests 16 … 19 lie above, the spread 8 … 9.5 do not.
    assert first.above_range == second.above_range == 4

    gaussian, box = result.sample_sizes
    kept = np.concatenate([np.arange(15.0), np.arange(16.0) / 2])
    bandwidth = np.std(kept, ddof=1) * 31 ** (-1 / 6)
    assert (gaussian.kernel, box.kernel) == ("gaussian", "box")
    assert gaussian.bandwidth == pytest.approx(bandwidth)
    assert (gaussian.n, gaussian.spread_moments, gaussian.low, gaussian.high) == (None, 16, 0, 14)
    assert box.sample_size == pytest.approx(16 * bandwidth / 14 / 2)
    assert gaussian.sample_size == pytest.approx(box.sample_size * math.sqrt(2 * math.pi))
    assert gaussian.tight_bound == percentile_error_bound(gaussian.sample_size)
    assert gaussian.loose_bound == percentile_error_bound(gaussian.sample_size, tight=False)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.to_dict()["coverage"][0]["succeeded"] == 5


def random_phases(
    seed: int = 0, count: int = 500
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    natural, spread = rng.gamma(2, 1, count), rng.uniform(0, 8, count)
    return (
        natural,
        natural[:, None] * rng.random((count, 2)),
        spread,
        spread[:, None] * rng.random((count, 2)),
    )


def test_paper_scale_uses_760_and_200_and_no_lift() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases()
    result = validate(
        natural_p, natural_c, spread_p, spread_c, (1, 2), confidence=0.9, method="paper",
        minimum_bandwidth=0.3,
    )  # fmt: skip
    assert (result.train_moments, result.test_moments) == (760, 200)
    bound = fit_bound(
        np.concatenate([natural_p[:400], spread_p[:400]]),
        np.concatenate([natural_c[:400], spread_c[:400]]),
        (1, 2),
        confidence=0.9,
        method="paper",
        minimum_bandwidth=0.3,
        lift=False,
    )
    tests = [(p, c) for p, c in zip(natural_p[400:], natural_c[400:], strict=True)]
    tests += [(p, c) for p, c in zip(spread_p[400:], spread_c[400:], strict=True)]
    for column in range(2):
        held = 0
        for proxy, losses in tests:
            nearest = int(np.argmin(np.abs(bound.grid[0] - proxy)))
            held += losses[column] <= bound.upper[column, nearest]
        assert result.coverage[column].succeeded == held
    assert result.coverage[0].standard_error == pytest.approx(0.0212, abs=1e-4)


def test_tuples_in_any_order_give_the_same_as_arrays_in_collection_order() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=40)
    order = np.random.default_rng(1).permutation(80)
    tuples = measured_tuples(
        np.array(["natural"] * 40 + ["spread"] * 40)[order],
        np.concatenate([natural_p, spread_p])[order],
        np.concatenate([natural_c, spread_c])[order],
        indices=np.concatenate([np.arange(40), np.arange(40)])[order],
    )
    expected = validate(natural_p, natural_c, spread_p, spread_c, (1, 2), confidence=0.8)
    assert validate_tuples(tuples, confidence=0.8) == expected


def test_one_phase_only() -> None:
    natural_p, natural_c, _, _ = random_phases(count=50)
    result = validate(natural_p, natural_c, [], [], (1, 2))
    assert result.test_moments == 10
    assert result.coverage[0].spread_tested == 0
    assert result.sample_sizes[0].sample_size == 0
    assert result.sample_sizes[0].tight_bound is None
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_proxy_that_looks_at_n_has_sample_sizes_per_n() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=50)
    both = [np.stack([p, 2 * p], axis=1) for p in (natural_p, spread_p)]
    result = validate(both[0], natural_c, both[1], spread_c, (1, 2))
    plain = validate(natural_p, natural_c, spread_p, spread_c, (1, 2))
    assert [row.n for row in result.sample_sizes] == [1, 1, 2, 2]
    assert [row.succeeded for row in result.coverage] == [row.succeeded for row in plain.coverage]
    assert result.sample_sizes[2].sample_size == pytest.approx(plain.sample_sizes[0].sample_size)


def test_bad_input() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=50)
    with pytest.raises(InvalidInput, match="train_share must lie between 0 and 1, got 1"):
        validate(natural_p, natural_c, spread_p, spread_c, (1, 2), train_share=1)
    with pytest.raises(InvalidInput, match="nothing to validate"):
        validate([], [], [], [], (1, 2))
    with pytest.raises(InvalidInput, match=r"one proxy for each row.*\(49,\) and \(50, 2\)"):
        validate(natural_p[1:], natural_c, spread_p, spread_c, (1, 2))
    with pytest.raises(InvalidInput, match="must have the same columns"):
        validate(natural_p, natural_c, spread_p, spread_c[:, :1], (1, 2))
    with pytest.raises(InvalidInput, match="at least 10 moments, got 8"):
        validate(natural_p[:5], natural_c[:5], spread_p[:5], spread_c[:5], (1, 2))
    with pytest.raises(InvalidInput, match="confidence must lie between 0 and 1, got 2"):
        validate(natural_p, natural_c, spread_p, spread_c, (1, 2), confidence=2)
    with pytest.raises(InvalidInput, match="the method 'best' is unknown; "):
        validate(natural_p, natural_c, spread_p, spread_c, (1, 2), method="best")


def test_cross_validation_can_be_read() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=300)
    result = validate(
        natural_p, natural_c, spread_p, spread_c, (1, 2), confidence=0.9, tolerances=[0.5, 2.0]
    )
    assert (result.method, result.estimand) == ("calibrated", "mean")
    assert len(result.held_out) == 2 * 6 * 3  # phases × (all and five parts) × (all and two n)
    whole = result.held_out[1]
    assert (whole.phase, whole.n, whole.part) == ("natural", 1, None)
    assert whole.held.low < 0.9 < whole.held.high
    assert whole.held.tested <= 300
    assert [(row.phase, row.tolerance) for row in result.chain] == [
        *[("natural", 0.5), ("natural", 2.0), ("spread", 0.5), ("spread", 2.0)]
    ]
    assert [row.failed.low <= 0.1 for row in result.chain if row.phase == "natural"] == [True] * 2
    assert result.same_law is not None
    assert result.same_law.p_value > 0.05
    assert 0 <= result.above_range < 0.02
    assert (result.no_bound, result.notes, result.gaps) == (0, (), None)
    assert result.tests_for_one_point == 5728
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["held_out"][1]["held"]["tested"] == whole.held.tested


def test_a_different_law_for_spread_moments_is_noticed() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=300)
    result = validate(natural_p, natural_c, spread_p, 2 * spread_c, (1, 2))
    assert result.same_law is not None
    assert result.same_law.p_value < 0.05


def test_a_confidence_beyond_the_data_is_noted() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=60)
    result = validate(natural_p, natural_c, spread_p, spread_c, (1, 2), confidence=0.99)
    assert result.no_bound == 1.0
    assert "needs 99 natural moments to calibrate on, and there are 4" in result.notes[0]
    assert {row.held.share for row in result.held_out} == {None}
    assert {row.mean_margin for row in result.chain} == {0}
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_dense_study_shows_its_gap_error() -> None:
    rng = np.random.default_rng(0)
    proxies, losses = rng.random(120), rng.random((120, 4))
    result = validate(proxies[:60], losses[:60], proxies[60:], losses[60:], (1, 2, 3, 4))
    assert result.gaps is not None
    assert result.gaps.thin == (1, 2, 4)


def test_single_runs() -> None:
    natural_p, natural_c, spread_p, spread_c = random_phases(count=100)
    runs = [np.repeat(losses[:, None], 3, axis=1) for losses in (natural_c, spread_c)]
    result = validate(natural_p, runs[0], spread_p, runs[1], (1, 2), estimand="single-run")
    assert result.estimand == "single-run"
    assert (result.train_moments, result.test_moments) == (152, 40)
    assert result.coverage[0].tested == 40  # three runs of a moment are one test
