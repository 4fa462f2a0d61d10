"""Upper bounds: which moments are used, the lift, the nearest bin, and bad input."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safemargin.bounds import METHODS, Bound, fit_bound, keep_lowest
from safemargin.density import estimate_density
from safemargin.errors import InvalidInput


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
    bound = fit_bound(proxies, criticalities, (1, 2, 4), confidence=0.9, minimum_bandwidth=0.2)
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
    plain = fit_bound(proxies, criticalities, (1, 2), confidence=confidence, lift=False, bins=30)
    lifted = fit_bound(proxies, criticalities, (1, 2), confidence=confidence, bins=30)
    assert (lifted.upper >= plain.upper).all()
    assert (np.diff(lifted.upper, axis=1) >= 0).all()
    # It raises no more than it must: every value was reached by some bin to the left.
    assert all(value in plain.upper[row, : j + 1]
               for row in range(2) for j, value in enumerate(lifted.upper[row]))  # fmt: skip


def test_a_proxy_that_looks_at_n_gets_its_own_grid_and_its_own_drop() -> None:
    proxies, criticalities = data()
    both = np.stack([proxies, -proxies, 10 * proxies], axis=1)
    bound = fit_bound(both, criticalities, (1, 2, 4))
    assert bound.looks_at_n
    single = fit_bound(-proxies, criticalities[:, [1]], (2,))
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
        ({"upper": [[0.1, 0.2, math.nan], [1, 1, 1]]}, "finite numbers only"),
        ({"grid": [[0.0, 2.0, 1.0]] * 2}, "must increase from bin to bin"),
        ({"grid": [[0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]}, "rows of the grid differ"),
        ({"n_values": (2, 1)}, r"increasing whole numbers from 1 on, got \[2, 1\]"),
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
    ],
)
def test_bad_options(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        fit_bound(*data(), (1, 2, 4), **changes)


@pytest.mark.parametrize(
    "n_values", [(), (0, 1, 2), (1, 1, 2), (4, 2, 1), (1, 2.5, 4), (True, 2, 3), (1, "2", 3)]
)
def test_bad_n_values(n_values: Any) -> None:
    with pytest.raises(InvalidInput, match="n_values must be increasing whole numbers from 1 on"):
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
    refuse(r"all 190 proxies are equal \(2\)", p=np.full(200, 2.0))
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
        fit_bound(proxies, np.ones((100, 1)), (1,))


@pytest.mark.parametrize("method", sorted(METHODS))
class TestEveryMethod:
    """What every bound method owes its users."""

    def test_shapes_and_labels(self, method: str) -> None:
        proxies, criticalities = data()
        bound = fit_bound(proxies, criticalities, (1, 2, 4), confidence=0.9, method=method)
        assert bound.upper.shape == bound.grid.shape == (3, bound.bins)
        assert (bound.method, bound.confidence, bound.n_values) == (method, 0.9, (1, 2, 4))

    def test_a_higher_confidence_never_lowers_the_bound(self, method: str) -> None:
        proxies, criticalities = data()
        low, high = (
            fit_bound(proxies, criticalities, (1, 2, 4), confidence=confidence, method=method)
            for confidence in (0.8, 0.95)
        )
        assert (high.upper >= low.upper).all()

    def test_equal_criticalities(self, method: str) -> None:
        proxies, criticalities = data()
        criticalities[:, 0] = 0.1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bound = fit_bound(proxies, criticalities, (1, 2, 4), method=method)
        assert (bound.upper[0] == 0.1).all()

    def test_the_same_data_give_the_same_bits(self, method: str) -> None:
        first, second = (fit_bound(*data(), (1, 2, 4), method=method) for _ in range(2))
        assert first.upper.tobytes() == second.upper.tobytes()
