"""Upper bounds: which moments are used, the lift, the nearest bin, and bad input."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safemargin.errors import InvalidInput
from safemargin.margins.bounds.paper import keep_lowest
from safemargin.margins.bounds.table import Bound
from safemargin.margins.density import estimate_density
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import METHODS, fit_bound


def data(moments: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    proxies = rng.gamma(2, 1, moments)
    return proxies, proxies[:, None] * rng.random((moments, 3)) * [0.5, 1, 2]


@pytest.mark.parametrize(
    ("moments", "share", "kept"),
    [(1000, 0.05, 950), (800, 0.05, 760), (19, 0.05, 19), (20, 0.05, 19), (100, 0.29, 71),
     (39, 0.05, 38), (50, 0.0, 50)],
)  # fmt: skip
def test_how_many_are_dropped(moments: int, share: float, kept: int) -> None:
    assert len(keep_lowest(np.random.default_rng(0).random(moments), share)) == kept


def test_among_equal_proxies_the_later_are_dropped_and_order_is_kept() -> None:
    proxies = np.array([3.0, 1.0, 3.0, 2.0, 3.0])
    assert keep_lowest(proxies, 0.4).tolist() == [0, 1, 3]
    assert keep_lowest(proxies, 0.2).tolist() == [0, 1, 2, 3]


def test_paper_bound_is_the_lifted_percentile_of_the_kept_moments() -> None:
    proxies, criticalities = data()
    bound = fit_bound(
        proxies, criticalities, (1, 2, 4), confidence=0.9, method="paper", minimum_bandwidth=0.2
    )
    keep = np.argsort(proxies)[:190]
    assert bound.grid.shape == bound.upper.shape == (3, 200)
    for column in range(3):
        density = estimate_density(
            proxies[keep], criticalities[keep, column], minimum_bandwidth=0.2
        )
        np.testing.assert_array_equal(bound.grid[column], density.proxy)
        np.testing.assert_allclose(
            bound.upper[column], np.maximum.accumulate(density.percentile(0.9)), atol=1e-9
        )
    assert bound.details["moments_used"] == 190
    assert bound.details["moments_dropped"] == 10
    assert bound.details["highest_proxy_used"][0] == np.sort(proxies)[189]
    assert min(bound.details["criticality_bandwidths"]) >= 0.2


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.05, 0.99))
def test_lift_rises_and_never_lowers(seed: int, confidence: float) -> None:
    rng = np.random.default_rng(seed)
    proxies, criticalities = rng.random(40), rng.normal(size=(40, 2)) * rng.random((40, 1))
    options: dict[str, Any] = {"confidence": confidence, "method": "paper", "bins": 30}
    plain = fit_bound(proxies, criticalities, (1, 2), lift=False, **options)
    lifted = fit_bound(proxies, criticalities, (1, 2), **options)
    assert (lifted.upper >= plain.upper).all()
    assert (np.diff(lifted.upper, axis=1) >= 0).all()
    # It raises no more than it must: every value was reached by some bin to the left.
    assert all(value in plain.upper[row, : j + 1]
               for row in range(2) for j, value in enumerate(lifted.upper[row]))  # fmt: skip


def test_a_proxy_that_looks_at_n_gets_its_own_grid_and_its_own_drop() -> None:
    proxies, criticalities = data()
    both = np.stack([proxies, -proxies, 10 * proxies], axis=1)
    bound = fit_bound(both, criticalities, (1, 2, 4), method="paper")
    assert bound.looks_at_n
    single = fit_bound(-proxies, criticalities[:, [1]], (2,), method="paper")
    np.testing.assert_array_equal(bound.grid[1], single.grid[0])
    np.testing.assert_allclose(bound.upper[1], single.upper[0], atol=1e-9)
    np.testing.assert_allclose(bound.grid[2], 10 * bound.grid[0])


def small(**changes: Any) -> Bound:
    values: dict[str, Any] = {
        "n_values": (1, 2),
        "grid": [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]],
        "upper": [[0.1, 0.2, 0.3], [1.1, 1.2, 1.3]],
        "confidence": 0.95,
        "method": "paper",
    }
    return Bound(**{**values, **changes})


def test_nearest_bin() -> None:
    bound = small()
    assert bound.at(0.4).tolist() == [0.1, 1.1]
    assert bound.at(0.5).tolist() == [0.2, 1.2]  # halfway: the higher proxy
    assert bound.at(-7).tolist() == [0.1, 1.1]
    assert bound.at([[1.4], [99.0]]).tolist() == [[[0.2, 1.2]], [[0.3, 1.3]]]
    each = small(grid=[[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]], looks_at_n=True)
    assert each.at([1.2, 11.8]).tolist() == [0.2, 1.3]
    with pytest.raises(InvalidInput, match=r"one value for each of n = \[1, 2\].*shape \(3,\)"):
        each.at([1.0, 2.0, 3.0])


def test_a_bound_cannot_be_changed() -> None:
    bound = small()
    with pytest.raises(ValueError, match="read-only"):
        bound.upper[0, 0] = 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"upper": [[0.1, 0.2], [1.0, 2.0]]}, r"both be \[2 n, bins\].*\(2, 3\) and \(2, 2\)"),
        ({"grid": [[0.0, 1.0, 2.0]]}, r"both be \[2 n, bins\]"),
        (
            {"upper": [[0.1, 0.2, math.nan], [1, 1, 1]]},
            "upper finite numbers or infinity",
        ),
        ({"grid": [[0.0, 2.0, 1.0]] * 2}, "must increase from bin to bin"),
        ({"grid": [[0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]}, "rows of the grid differ"),
        ({"n_values": (2, 1)}, r"increasing whole numbers, starting at 1 or above, got \[2, 1\]"),
        ({"confidence": 1.0}, "confidence must lie between 0 and 1, got 1.0"),
    ],
)
def test_a_bound_checks_itself(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        small(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": "papper"}, "method 'papper' is unknown; did you mean 'paper'"),
        ({"confidence": 0}, "confidence must lie between 0 and 1, got 0"),
        ({"confidence": 1.5}, "confidence must lie between 0 and 1, got 1.5"),
        ({"confidence": math.nan}, "confidence must lie between 0 and 1, got nan"),
        ({"drop_highest": 1.0}, "drop_highest must be at least 0 and below 1, got 1.0"),
        ({"minimum_bandwidth": -1.0}, "minimum_bandwidth must be at least 0, got -1.0"),
        ({"bins": 1}, "bins must be at least 2, got 1"),
        ({"calibration": "spilt"}, "calibration 'spilt' is unknown; did you mean 'split'"),
        ({"calibration_bins": 0}, "calibration_bins must be at least 1, got 0"),
        ({"assurance": 1.0}, "assurance must lie between 0 and 1, got 1.0"),
        ({"estimand": "meen"}, "estimand 'meen' is unknown; did you mean 'mean'"),
        ({"lifts": True}, "the option 'lifts' is unknown; did you mean 'lift'"),
        ({"natural": [1] * 200}, "natural must be a mask of 200 booleans, one per moment, got int"),
        ({"natural": [True] * 3}, r"mask of 200 booleans.* got bool of shape \(3,\)"),
        ({"groups": [1, 2]}, r"one label for each of 200 moments, got shape \(2,\)"),
        ({"groups": ["a"] * 200}, "all moments belong to one group"),
        ({"estimand": "single-run"}, r"single runs, \[moments, runs, 3\], got shape \(200, 3\)"),
    ],
)
def test_bad_options(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        fit_bound(*data(), (1, 2, 4), **changes)


@pytest.mark.parametrize(
    "n_values", [(), (0, 1, 2), (1, 1, 2), (4, 2, 1), (1, 2.5, 4), (True, 2, 3), (1, "2", 3)]
)
def test_bad_n_values(n_values: Any) -> None:
    with pytest.raises(
        InvalidInput, match="n_values must be increasing whole numbers, starting at 1 or above"
    ):
        fit_bound(*data(), n_values)


def test_numpy_whole_numbers_are_fine() -> None:
    assert fit_bound(*data(), np.array([1, 2, 4])).n_values == (1, 2, 4)  # type: ignore[arg-type]


def test_bad_data() -> None:
    proxies, criticalities = data()

    def refuse(text: str, p: Any = proxies, c: Any = criticalities) -> None:
        with pytest.raises(InvalidInput, match=text):
            fit_bound(p, c, (1, 2, 4))

    refuse("at least 10 moments, got 9: collect more", proxies[:9], criticalities[:9])
    refuse("at least 10 moments, got 0", proxies[:0], criticalities[:0])
    refuse(r"criticalities must be \[moments, 3\].*got shape \(200, 2\)", c=criticalities[:, :2])
    refuse(r"criticalities must be \[moments, 3\].*got shape \(200,\)", c=criticalities[:, 0])
    refuse(r"proxies must be \[200\].*\[200, 3\].*got shape \(199,\)", p=proxies[1:])
    refuse(r"all 200 proxies are equal \(2\)", p=np.full(200, 2.0))
    refuse("proxies must be an array of numbers", p=["high"] * 200)
    spoiled = proxies.copy()
    spoiled[17] = math.nan
    refuse("proxies must be finite, but hold nan at moment 17", p=spoiled)
    spoiled = criticalities.copy()
    spoiled[3, 2] = -math.inf
    refuse("criticalities must be finite, but hold -inf at moment 3, n = 4", c=spoiled)


def test_proxies_equal_but_for_the_dropped_ones_are_refused() -> None:
    proxies = np.full(100, 2.0)
    proxies[:5] = 9.0
    with pytest.raises(InvalidInput, match=r"all 95 proxies are equal \(2\)"):
        fit_bound(proxies, np.ones((100, 1)), (1,), method="paper")


def test_infinity_is_no_bound() -> None:
    bound = small(upper=[[0.1, 0.2, math.inf], [1.1, math.inf, math.inf]])
    assert bound.unbounded == pytest.approx(0.5)
    assert bound.at(2.0).tolist() == [math.inf, math.inf]
    with pytest.raises(InvalidInput, match="finite numbers or infinity"):
        small(upper=[[-math.inf, 0.2, 0.3], [1.1, 1.2, 1.3]])


@pytest.mark.parametrize("method", sorted(METHODS))
class TestEveryMethod:
    """What every bound method owes its users."""

    def test_shapes_and_labels(self, method: str) -> None:
        proxies, criticalities = data()
        bound = fit_bound(proxies, criticalities, (1, 2, 4), confidence=0.9, method=method)
        assert bound.upper.shape == bound.grid.shape == (3, bound.bins)
        assert (bound.method, bound.confidence, bound.n_values) == (method, 0.9, (1, 2, 4))
        assert bound.estimand == "mean"
        assert {"guarantee", "bounds", "moments_given"} <= set(bound.details)
        json.dumps(bound.details, allow_nan=False)

    def test_it_rises_with_the_proxy_and_lift_never_lowers(self, method: str) -> None:
        proxies, criticalities = data()
        lifted, plain = (
            fit_bound(proxies, criticalities, (1, 2, 4), method=method, lift=lift).upper
            for lift in (True, False)
        )
        assert (lifted[:, 1:] >= lifted[:, :-1]).all()
        assert (lifted >= plain).all()

    def test_a_higher_confidence_gives_a_higher_bound(self, method: str) -> None:
        proxies, criticalities = data(800)
        low, high = (
            fit_bound(proxies, criticalities, (1, 2, 4), confidence=confidence, method=method)
            for confidence in (0.7, 0.95)
        )
        reach = np.isfinite(high.upper[0]).sum()  # of `tolerance`: it ends sooner
        assert reach > 100
        means = [bound.upper[:, :100].mean(axis=1) for bound in (low, high)]
        assert (means[1] > means[0]).all()

    def test_equal_criticalities(self, method: str) -> None:
        proxies, criticalities = data()
        criticalities[:, :] = 0.1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bound = fit_bound(proxies, criticalities, (1, 2, 4), method=method)
        finite = bound.upper[np.isfinite(bound.upper)]
        assert len(finite)
        np.testing.assert_allclose(finite, 0.1)

    def test_the_same_data_give_the_same_bits(self, method: str) -> None:
        first, second = (fit_bound(*data(), (1, 2, 4), method=method) for _ in range(2))
        assert first.upper.tobytes() == second.upper.tobytes()

    def test_the_order_of_moments_does_not_matter(self, method: str) -> None:
        proxies, criticalities = data()
        order = np.random.default_rng(3).permutation(200)
        natural, groups = np.arange(200) % 3 > 0, np.arange(200) // 2
        plain = fit_bound(
            proxies, criticalities, (1, 2, 4), method=method, natural=natural, groups=groups
        )
        shuffled = fit_bound(
            proxies[order],
            criticalities[order],
            (1, 2, 4),
            method=method,
            natural=natural[order],
            groups=groups[order],
        )
        np.testing.assert_allclose(shuffled.upper, plain.upper, atol=1e-9)

    def test_it_survives_a_file(self, method: str, tmp_path: Path) -> None:
        proxies, criticalities = data()
        margins = Margins(fit_bound(proxies, criticalities, (1, 2, 4), method=method))
        again = Margins.load(margins.save(tmp_path / "margins.json"))
        assert again.bound.upper.tobytes() == margins.bound.upper.tobytes()
        assert again.to_dict() == margins.to_dict()

    def test_margins_are_never_negative_and_rise_with_the_tolerance(self, method: str) -> None:
        proxies, criticalities = data()
        margins = Margins(fit_bound(proxies, criticalities - 0.5, (1, 2, 4), method=method))
        found = margins.lookup(np.linspace(-1, 12, 50)[:, None], [0.0, 0.5, 1.0, 2.0, 1e9]).margin
        assert set(np.unique(found)) <= {0, 1, 2, 4}
        assert (np.diff(found, axis=1) >= 0).all()
        inside = margins.lookup(np.sort(proxies), 1.0).margin
        assert (np.diff(inside) <= 0).all()  # a higher proxy never gets a larger margin

    def test_single_runs(self, method: str) -> None:
        proxies, criticalities = data()
        runs = criticalities[:, None] * np.random.default_rng(1).exponential(size=(200, 4, 1))
        single = fit_bound(proxies, runs, (1, 2, 4), method=method, estimand="single-run")
        mean = fit_bound(proxies, criticalities, (1, 2, 4), method=method)
        assert single.estimand == "single-run"
        assert single.details["moments_given"] == 200
        finite = np.isfinite(single.upper) & np.isfinite(mean.upper)
        assert single.upper[finite].mean() > mean.upper[finite].mean()

    def test_a_proxy_that_looks_at_n(self, method: str) -> None:
        proxies, criticalities = data()
        both = np.stack([proxies, 2 * proxies, 3 * proxies], axis=1)
        bound = fit_bound(both, criticalities, (1, 2, 4), method=method)
        plain = fit_bound(proxies, criticalities, (1, 2, 4), method=method)
        assert bound.looks_at_n
        np.testing.assert_allclose(bound.upper, plain.upper, atol=1e-9)
        np.testing.assert_allclose(bound.grid[2], 3 * plain.grid[2])

    def test_few_values_of_the_proxy(self, method: str) -> None:
        proxies, criticalities = data()
        bound = fit_bound(np.round(proxies), criticalities, (1, 2, 4), method=method)
        assert (np.diff(bound.grid, axis=1) > 0).all()


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"paper"}))
class TestRankBasedMethods:
    """Methods that use the ranks of the proxies; the paper's kernel runs over their values."""

    def test_the_scale_of_the_proxy_does_not_matter(self, method: str) -> None:
        proxies, criticalities = data()
        plain, bent = (
            fit_bound(values, criticalities, (1, 2, 4), method=method)
            for values in (proxies, np.exp(3 * proxies) - 7)
        )
        np.testing.assert_array_equal(bent.upper, plain.upper)
        np.testing.assert_allclose(bent.grid, np.exp(3 * plain.grid) - 7)

    def test_proxies_without_a_number_between_them_are_refused(self, method: str) -> None:
        proxies, criticalities = data()
        near = np.where(proxies > 2, 1.0, np.nextafter(1.0, 0.0))
        with pytest.raises(InvalidInput, match="too close together to tell apart"):
            fit_bound(near, criticalities, (1, 2, 4), method=method)
