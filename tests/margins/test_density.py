"""The paper's 2d kernel density: by hand, and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from safemargin.errors import InvalidInput
from safemargin.margins.density import Density, estimate_density, scott_bandwidth


def brute_force(
    proxies: list[float], criticalities: list[float], bins: int, minimum_bandwidth: float
) -> tuple[list[float], list[float], list[list[float]]]:
    """The density by its definition: a loop over bins, bins and data, nothing clever."""
    count = len(proxies)

    def bandwidth(values: list[float]) -> float:
        mean = math.fsum(values) / count
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        return math.sqrt(variance) * count ** (-1 / 6)

    width = bandwidth(proxies)
    height = max(bandwidth(criticalities), minimum_bandwidth)
    low, high = min(proxies), max(proxies)
    bottom, top = min(criticalities) - 3 * height, max(criticalities) + 3 * height
    across = [low + (high - low) * j / (bins - 1) for j in range(bins)]
    up = [bottom + (top - bottom) * k / (bins - 1) for k in range(bins)]
    table = [[0.0] * bins for _ in range(bins)]
    for j, x in enumerate(across):
        for k, y in enumerate(up):
            table[k][j] = math.fsum(
                math.exp(-((x - p) ** 2) / (2 * width**2) - (y - c) ** 2 / (2 * height**2))
                / (2 * math.pi * width * height)
                for p, c in zip(proxies, criticalities, strict=True)
            )
        column = math.fsum(table[k][j] for k in range(bins))
        for k in range(bins):
            table[k][j] /= column
    return across, up, table


@pytest.mark.parametrize("minimum_bandwidth", [0.0, 0.9])
def test_agrees_with_plain_loops_over_bins_and_data(minimum_bandwidth: float) -> None:
    rng = np.random.default_rng(5)
    proxies = rng.gamma(2, 1.5, 60)
    criticalities = proxies * rng.random(60) - 0.2
    density = estimate_density(proxies, criticalities, bins=40, minimum_bandwidth=minimum_bandwidth)
    across, up, table = brute_force(list(proxies), list(criticalities), 40, minimum_bandwidth)
    np.testing.assert_allclose(density.proxy, across, rtol=0, atol=1e-12)
    np.testing.assert_allclose(density.criticality, up, rtol=0, atol=1e-12)
    np.testing.assert_allclose(density.weights, table, rtol=0, atol=1e-9)
    for j in range(40):
        column = [table[k][j] for k in range(40)]
        mean = math.fsum(weight * y for weight, y in zip(column, up, strict=True))
        assert density.mean[j] == pytest.approx(mean, abs=1e-9)
        for beta, curve in ((0.5, density.median), (0.95, density.percentile(0.95))):
            first = next(k for k in range(40) if math.fsum(column[: k + 1]) >= beta)
            assert curve[j] == pytest.approx(up[first], abs=1e-9)


def test_bandwidth_worked_by_hand() -> None:
    # mean 2, squares 4 + 0 + 0 + 4 = 8, Bessel 8/3; four values: 4^(−1/6) = 0.7937
    assert scott_bandwidth(np.array([0.0, 2.0, 2.0, 4.0])) == pytest.approx(
        math.sqrt(8 / 3) * 0.7937005259840998, abs=1e-15
    )
    assert scott_bandwidth(np.full(7, 0.1)) == 0.0  # though the mean of 0.1s is not quite 0.1
    assert scott_bandwidth(np.array([0.0, 1e-200])) > 0  # its square is below the smallest float


def test_percentile_is_the_first_bin_that_reaches_beta() -> None:
    density = Density(
        proxy=np.array([0.0, 1.0]),
        criticality=np.array([10.0, 20.0, 30.0, 40.0]),
        weights=np.array([[0.50, 0.0], [0.25, 0.0], [0.25, 1.0], [0.0, 0.0]]),
        proxy_bandwidth=1.0,
        criticality_bandwidth=1.0,
    )
    assert density.percentile(0.50).tolist() == [10, 30]  # reached exactly counts
    assert density.percentile(0.51).tolist() == [20, 30]
    assert density.percentile(0.75).tolist() == [20, 30]
    assert density.percentile(0.95).tolist() == [30, 30]
    assert density.median.tolist() == [10, 30]
    assert density.mean.tolist() == [17.5, 30]  # 0.5·10 + 0.25·20 + 0.25·30


def test_percentile_is_within_half_a_bin_of_the_continuous_density() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.gamma(2, 1, 300)
    criticalities = proxies * rng.random(300)
    density = estimate_density(proxies, criticalities)
    step = density.criticality[1] - density.criticality[0]
    upper = density.percentile(0.95)
    for j in range(0, 200, 9):
        weights = np.exp(-0.5 * ((density.proxy[j] - proxies) / density.proxy_bandwidth) ** 2)

        def mass(value: float, weights: np.ndarray = weights) -> float:
            below = norm.cdf((value - criticalities) / density.criticality_bandwidth)
            return float(np.average(below, weights=weights))

        # The axis ends at 3H, so the density is cut off half a bin beyond its first and last bin.
        start = mass(density.criticality[0] - step / 2)
        goal = start + 0.95 * (mass(density.criticality[-1] + step / 2) - start)
        assert mass(upper[j] - 0.51 * step) <= goal <= mass(upper[j] + 0.51 * step)


def test_columns_sum_to_one_even_far_from_every_datum() -> None:
    # Halfway, both clusters are 146 bandwidths away: exp(−146²/2) is 0 in floating point.
    proxies = np.concatenate([np.zeros(5000), [1.0]])
    density = estimate_density(proxies, np.linspace(0, 1, 5001), bins=201)
    assert density.proxy_bandwidth < 0.01
    np.testing.assert_allclose(density.weights.sum(axis=0), 1)
    assert np.isfinite(density.percentile(0.95)).all()
    # Columns left of the middle belong to the cluster at 0, those right of it to the datum at 1.
    assert density.mean[90] == pytest.approx(0.5, abs=0.01)
    assert density.mean[110] == pytest.approx(1.0, abs=0.01)


def test_coarse_vertical_grid_does_not_lose_a_datum() -> None:
    # One criticality far out: its neighbours on the grid are hundreds of bandwidths away.
    criticalities = np.zeros(4000)
    criticalities[-1] = 1.0
    density = estimate_density(np.linspace(0, 1, 4000), criticalities, bins=2)
    np.testing.assert_allclose(density.weights.sum(axis=0), 1)


def test_equal_criticalities_give_exactly_that_value() -> None:
    proxies = np.linspace(0, 1, 30)
    density = estimate_density(proxies, np.full(30, 0.1))
    assert density.criticality_bandwidth == 0
    for curve in (density.mean, density.median, density.percentile(0.95)):
        assert (curve == 0.1).all()
    wide = estimate_density(proxies, np.full(30, 0.1), minimum_bandwidth=0.5)
    assert wide.criticality_bandwidth == 0.5
    # A Gaussian of sd 0.5 around 0.1, cut at ±3 sd: its 95 % point is 0.1 + 1.637·0.5.
    assert wide.percentile(0.95)[0] == pytest.approx(0.1 + 1.637 * 0.5, abs=3 / 199)
    assert wide.percentile(0.95)[0] >= 0.1 + 1.637 * 0.5 - 1e-3


def test_minimum_bandwidth_only_raises() -> None:
    rng = np.random.default_rng(1)
    proxies, criticalities = rng.random(50), rng.random(50)
    own = estimate_density(proxies, criticalities).criticality_bandwidth
    for minimum in (0.0, own / 2):
        density = estimate_density(proxies, criticalities, minimum_bandwidth=minimum)
        assert density.criticality_bandwidth == own
    assert estimate_density(
        proxies, criticalities, minimum_bandwidth=2 * own
    ).criticality_bandwidth == pytest.approx(2 * own)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-1e3, 1e3, allow_subnormal=False), st.floats(-1e3, 1e3, allow_subnormal=False)
        ),
        min_size=3,
        max_size=30,
    ).filter(lambda pairs: np.ptp([p for p, _ in pairs]) > 1e-6)
)
def test_any_data_give_distributions_and_ordered_percentiles(
    pairs: list[tuple[float, float]],
) -> None:
    data = np.array(pairs)
    density = estimate_density(data[:, 0], data[:, 1], bins=20)
    np.testing.assert_allclose(density.weights.sum(axis=0), 1)
    assert (density.percentile(0.5) <= density.percentile(0.95)).all()
    assert (density.mean >= density.criticality[0]).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bins": 1}, "bins must be at least 2, got 1"),
        ({"minimum_bandwidth": -0.1}, "minimum_bandwidth must be at least 0, got -0.1"),
        ({"minimum_bandwidth": math.nan}, "minimum_bandwidth must be at least 0, got nan"),
    ],
)
def test_bad_options(options: dict[str, float], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        estimate_density(np.arange(5.0), np.arange(5.0), **options)  # type: ignore[arg-type]


def test_bad_data() -> None:
    with pytest.raises(InvalidInput, match=r"all 12 proxies are equal \(3\)"):
        estimate_density(np.full(12, 3.0), np.arange(12.0))
    with pytest.raises(InvalidInput, match=r"both \[moments\]; got shapes \(3,\) and \(4,\)"):
        estimate_density(np.arange(3.0), np.arange(4.0))
    with pytest.raises(InvalidInput, match="between 0 and 1, got 1"):
        estimate_density(np.arange(3.0), np.arange(3.0)).percentile(1)
