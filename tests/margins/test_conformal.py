"""Calibration by hand: ranks, folds, bins, the order statistic, and what is refused."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safemargin.errors import InvalidInput, MissingExtra
from safemargin.margins.bounds.calibrated import CELLS, kernel_percentiles
from safemargin.margins.bounds.conformal import (
    POINTS,
    conformal_quantile,
    fit_calibrated_curve,
    moments_needed,
)
from safemargin.margins.bounds.isotonic import CELLS as ISOTONIC_CELLS
from safemargin.margins.bounds.isotonic import rising_percentiles
from safemargin.margins.bounds.ranks import assign_folds, proxy_grid, ranks_in
from safemargin.margins.bounds.sample import Options, Sample
from safemargin.margins.bounds.tolerance import window_needed
from safemargin.margins.fitting import fit_margins
from safemargin.margins.methods import fit_bound


@pytest.mark.parametrize(
    ("confidence", "one", "five"),
    [
        (0.5, 1, 5),
        (0.9, 9, 45),
        (0.95, 19, 95),
        (0.99, 99, 495),
        (0.999, 999, 4995),
        (0.9999, 9999, 49_995),
    ],
)
def test_moments_needed(confidence: float, one: int, five: int) -> None:
    assert moments_needed(confidence, 1) == one
    assert moments_needed(confidence) == five
    # One fewer, and the order statistic does not exist.
    assert conformal_quantile(np.zeros(one), one, confidence) == 0.0
    assert conformal_quantile(np.zeros(one - 1), one - 1, confidence) == math.inf


def test_moments_needed_refuses() -> None:
    with pytest.raises(InvalidInput, match="confidence must lie between 0 and 1, got 1"):
        moments_needed(1.0)
    with pytest.raises(InvalidInput, match="bins must be at least 1, got 0"):
        moments_needed(0.9, 0)


def test_the_order_statistic_by_hand() -> None:
    scores = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert conformal_quantile(scores, 5, 0.5) == 3.0  # ⌈6 · 0.5⌉ = 3rd
    assert conformal_quantile(scores, 5, 0.6) == 4.0  # ⌈3.6⌉ = 4th
    assert conformal_quantile(scores, 5, 5 / 6) == 5.0  # exactly the 5th, rounding or not
    assert conformal_quantile(scores, 5, 0.84) == math.inf
    # Two runs of each of five moments: the 3rd of 5 moments is the 6th of 10 runs.
    assert conformal_quantile(np.arange(10.0), 5, 0.5) == 5.0


def test_crepes_finds_the_same_order_statistic() -> None:
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(0)
    residuals = rng.normal(size=137)
    model = crepes.ConformalPredictiveSystem()
    model.fit(residuals=residuals)
    for beta in (0.8, 0.9, 0.95):
        ours = conformal_quantile(residuals, 137, beta)
        theirs = model.predict_percentiles(np.zeros(1), higher_percentiles=100 * beta)
        assert np.ravel(theirs)[0] == pytest.approx(ours)


def test_ranks_count_ties_half() -> None:
    reference = np.array([1.0, 2.0, 2.0, 3.0])
    assert ranks_in(reference, np.array([0.0, 1.0, 2.0, 2.5, 3.0, 9.0])).tolist() == [
        *[0.0, 0.125, 0.5, 0.75, 0.875, 1.0]
    ]


def test_the_grid_of_few_values() -> None:
    assert proxy_grid(np.array([3.0, 1.0, 1.0, 2.0]), 5).tolist() == [1, 1.5, 2, 2.5, 3]
    grid = proxy_grid(np.random.default_rng(0).gamma(2, 1, 1000), 200)
    assert len(grid) == 200
    near = np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2.0)])
    assert (np.diff(proxy_grid(near, 9)) > 0).all()  # no room in the last gap: it is left alone


def sample(moments: int = 120, **more: Any) -> Any:
    rng = np.random.default_rng(0)
    proxies = rng.gamma(2, 1, moments)
    return Sample.from_arrays(proxies, proxies[:, None] * rng.random((moments, 2)), (1, 2), **more)


def test_folds_keep_groups_whole_and_cover_the_range() -> None:
    whole = sample(groups=np.arange(120) // 3)
    folds = assign_folds(whole, 10)
    for group in range(40):
        assert len(set(folds[whole.groups == group])) == 1
    assert np.bincount(folds).tolist() == [12] * 10
    alone = sample()
    folds = assign_folds(alone, 10)
    order = np.argsort(alone.proxies[:, 0])
    assert [sorted(folds[order[start : start + 10]]) for start in range(0, 120, 10)] == [
        list(range(10))
    ] * 12


def plain_percentile(ranks: np.ndarray, losses: np.ndarray, at: float, width: float, level: float):  # type: ignore[no-untyped-def]
    cells = (np.minimum((ranks * CELLS).astype(int), CELLS - 1) + 0.5) / CELLS
    weights = np.exp(-0.5 * ((at - cells) / width) ** 2)
    order = np.argsort(losses, kind="stable")
    reached = np.cumsum(weights[order])
    return losses[order][np.argmax(reached >= level * (1 - 1e-9) * reached[-1])]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(12, 300), st.sampled_from([0.5, 0.9, 0.99]))
def test_kernel_percentiles_against_a_plain_loop(seed: int, count: int, level: float) -> None:
    rng = np.random.default_rng(seed)
    ranks, losses = rng.random(count), np.round(rng.gamma(1, 1, count), 1)  # with ties
    folds = rng.integers(0, 3, count)
    found = kernel_percentiles(ranks, losses, folds, 3, 0.08, level)
    assert found.shape == (4, len(POINTS))
    for left_out in range(4):
        kept = folds != left_out
        for point in (0, 33, 100):
            expected = plain_percentile(ranks[kept], losses[kept], POINTS[point], 0.08, level)
            assert found[left_out, point] == expected


def test_isotonic_percentiles_against_the_definition() -> None:
    rng = np.random.default_rng(2)
    cells = np.sort(rng.integers(0, ISOTONIC_CELLS, 150))
    losses = cells / 10 + rng.exponential(size=150)
    order = np.argsort(losses)
    (found,) = rising_percentiles(cells[order], losses[order], [0.8])

    def percentile(first: int, last: int) -> float | None:
        inside = np.sort(losses[(cells >= first) & (cells <= last)])
        return inside[math.ceil(0.8 * len(inside) - 1e-9) - 1] if len(inside) else None

    for j in range(0, ISOTONIC_CELLS, 3):
        best = -math.inf
        for first in range(j + 1):
            values = [percentile(first, last) for last in range(j, ISOTONIC_CELLS)]
            known = [value for value in values if value is not None]
            if known:
                best = max(best, min(known))
        assert found[j] == best
    assert (np.diff(found) >= 0).all()


def constant_curve(level: float) -> Any:
    """A curve that knows nothing: 0 everywhere, scale 1."""

    def curve(ranks: Any, losses: Any, folds: Any, count: int, confidence: float) -> Any:
        return np.full((count + 1, len(POINTS)), level), np.ones((count + 1, len(POINTS)))

    return curve


def test_calibration_by_hand() -> None:
    # 40 natural moments, proxies 1 … 40, losses equal to the proxy; the curve says 0, so the
    # scores are the losses. Two bins of 20: ⌈21 · 0.9⌉ = 19th, so 19 and 39; all 40: the 37th.
    proxies = np.arange(1.0, 41.0)
    whole = Sample.from_arrays(proxies, proxies[:, None], (1,))
    options = Options(confidence=0.9, calibration_bins=2, bins=40)
    bound = fit_calibrated_curve(
        whole, options, method="calibrated", curve=constant_curve(0.0), fold_count=4
    )
    assert bound.details["calibration_moments"] == [20, 20]
    assert bound.details["raised_by"] == [[(19 + 37) / 2, (39 + 37) / 2]]
    assert bound.at([1.0, 20.0, 21.0, 40.0])[:, 0].tolist() == [28, 28, 38, 38]


def test_only_natural_moments_calibrate() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(400)
    losses = rng.random((400, 1))
    natural = np.arange(400) % 2 == 0
    uneven = losses * np.where(natural, 1.0, 2.0)[:, None]
    bound = fit_bound(proxies, uneven, (1,), confidence=0.8, natural=natural)
    assert bound.details["natural_moments"] == 200
    held = uneven[:, 0] <= bound.at(proxies)[:, 0]
    assert 0.75 < held[natural].mean() < 0.88
    assert held[~natural].mean() < 0.55


def test_split_calibration_uses_half() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(400)
    bound = fit_bound(proxies, rng.random((400, 1)), (1,), confidence=0.8, calibration="split")
    assert sum(bound.details["calibration_moments"]) == 200
    assert "exact in finite samples" in bound.details["guarantee"]


@pytest.mark.parametrize(
    ("natural", "options", "unbounded", "text"),
    [
        (
            18,
            {},
            True,
            "every margin is 0: a confidence of 0.95 needs 19 natural moments.*there are 18",
        ),
        (18, {"calibration": "split"}, True, "half of all with split calibration"),
        (
            60,
            {"calibration_bins": 4},
            True,
            "in each of 4 parts .* there are 60; collect 76 or more",
        ),
        (60, {}, False, "in 1 part of the proxy's range, not in 5: there are 60 .* 475 allow 5"),
        (200, {"confidence": 0.9}, False, "in 4 parts of the proxy's range, not in 5"),
        (475, {}, False, None),
    ],
)
def test_notes(natural: int, options: dict[str, Any], unbounded: bool, text: str | None) -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(natural + 50)
    bound = fit_bound(
        proxies,
        proxies[:, None] * rng.random((natural + 50, 2)),
        (1, 2),
        natural=np.arange(natural + 50) < natural,
        **options,
    )
    if text is None:
        assert bound.notes == ()
    else:
        (note,) = bound.notes
        assert re.search(text, note), note
    assert (bound.unbounded > 0) == unbounded


def test_one_part_with_too_few_has_no_bound_and_none_above_it() -> None:
    # Five parts of ten; four equal proxies draw three moments from the fourth into the last.
    proxies = np.arange(50.0)
    proxies[37:41] = 37
    losses = np.random.default_rng(0).random((50, 1))
    bound = fit_bound(proxies, losses, (1,), confidence=0.9, calibration_bins=5)
    assert bound.details["calibration_moments"] == [10, 10, 10, 7, 13]
    assert np.isfinite(bound.at([0.0, 29.0])).all()
    assert np.isinf(bound.at([30.0, 37.0, 49.0])).all()
    assert "in each of 5 parts, and one has 7;" in bound.notes[0]


@pytest.mark.parametrize("method", ["calibrated", "isotonic"])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.39, 0.59, 0.8])
@pytest.mark.parametrize("value", [0.01, 0.5, 1.0])
def test_equal_proxies_leave_no_part_without_a_bound(
    method: str, share: float, value: float
) -> None:
    covered = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        proxies = np.where(np.arange(500) < 500 * share, value, rng.random(500))
        losses = proxies[:, None] * rng.random((500, 1))
        bound = fit_bound(proxies, losses, (1,), method=method)
        assert bound.unbounded == 0
        counts = bound.details["calibration_moments"]
        assert sum(counts) == 500
        assert min(counts) >= 50  # half of a fifth
        separated = [note.endswith("equal proxies cannot be separated") for note in bound.notes]
        assert separated == [True] * (len(counts) < 5)
        # Losses are spread evenly from 0 to the proxy.
        covered.append(np.clip(bound.at(proxies)[:, 0] / proxies, 0, 1).mean())
    assert np.mean(covered) >= 0.95 - 3 * 0.0035  # standard error of twelve


def test_an_empty_part_that_no_proxy_reaches_is_not_noted() -> None:
    proxies = np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], [100, 100, 5, 100, 95])
    losses = np.random.default_rng(0).random((400, 1))
    bound = fit_bound(proxies, losses, (1,), confidence=0.9, calibration_bins=5)
    assert min(bound.details["calibration_moments"]) == 0
    assert bound.unbounded == 0
    assert bound.notes == ()


@pytest.mark.parametrize(("natural", "confidence"), [(19, 0.95), (37, 0.95), (38, 0.95), (10, 0.9)])
def test_few_moments_cover_what_they_promise(natural: int, confidence: float) -> None:
    # The losses are exponential and have nothing to do with the proxy: coverage is 1 − e^−b.
    covered = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        proxies, losses = rng.random(natural), rng.exponential(size=(natural, 1))
        bound = fit_bound(proxies, losses, (1,), confidence=confidence)
        covered.append(np.mean(1 - np.exp(-bound.at(np.linspace(0, proxies.max(), 100)))))
    error = np.std(covered) / math.sqrt(len(covered))
    assert np.mean(covered) >= confidence - 2 * error
    assert np.mean(covered) <= confidence + 0.04
    assert ("one bound for all proxies" in bound.notes[0]) == (
        natural < 2 * moments_needed(confidence, 1)
    )


def test_tolerance_windows() -> None:
    assert window_needed(0.95, 0.95) == 59  # 0.95^59 = 0.0485
    assert window_needed(0.99, 0.95) == 299
    proxies = np.arange(100.0)
    bound = fit_bound(proxies, proxies[:, None], (1,), method="tolerance", bins=100)
    # From proxy 0 the window is 0 … 58, and the limit is its largest; from 41 on 59 are ahead.
    assert bound.at(0.0)[0] == 58
    assert bound.at(41.0)[0] == 99
    assert bound.at(42.0)[0] == math.inf
    with pytest.warns(UserWarning, match="needs 299 moments in a window, and there are 100"):
        fit_margins(proxies, proxies[:, None], (1,), 0.99, "tolerance")


def test_boosted_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    rng = np.random.default_rng(0)
    with pytest.raises(MissingExtra, match=r"pip install 'safemargin\[methods\]'"):
        fit_bound(rng.random(50), rng.random((50, 1)), (1,), method="boosted")


def test_the_bound_is_on_the_running_maximum() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(300)
    losses = np.stack([5 + rng.random(300), rng.random(300)], axis=1)  # n = 2 loses less
    for method in ("calibrated", "isotonic", "boosted", "tolerance"):
        bound = fit_bound(proxies, losses, (1, 2), method=method)
        np.testing.assert_array_equal(bound.upper[0], bound.upper[1])
    paper = fit_bound(proxies, losses, (1, 2), method="paper")
    assert paper.upper[1].max() < 3


def test_a_raise_never_leads_above_every_loss() -> None:
    """A score that is large where the scale is small must not count many times elsewhere."""
    proxies = np.linspace(0, 1, 40)
    losses = np.zeros((40, 1))
    losses[[7, 21, 25, 29, 33, 37]] = 30.0  # once where losses are rare, often above
    natural = np.arange(40) < 20
    bound = fit_bound(proxies, losses, (1,), natural=natural)
    assert max(bound.details["raised_by"][0]) > 5
    assert bound.upper.max() == 30.0
