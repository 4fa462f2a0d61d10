"""The permutation test: silent where the law is the same, loud where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.margins.bounds.sample import Sample
from safemargin.validation.exchangeability import exchangeability_test


def draw(rng: np.random.Generator, factor: float = 1.0, count: int = 300) -> Sample:
    """Natural proxies are low, spread ones anywhere; spread losses are `factor` times as large."""
    proxies = np.concatenate([rng.gamma(2, 1, count), rng.uniform(0, 8, count)])
    natural = np.arange(2 * count) < count
    losses = proxies[:, None] * rng.random((2 * count, 2)) * np.where(natural, 1, factor)[:, None]
    return Sample.from_arrays(proxies, losses, (1, 2), natural=natural)


def test_the_same_law_is_rarely_accused() -> None:
    rng = np.random.default_rng(1)
    values = []
    for _ in range(25):
        found = exchangeability_test(draw(rng), permutations=99)
        assert found is not None
        values.append(found.p_value)
    assert np.mean(np.array(values) <= 0.05) <= 0.16  # 4 of 25; 5 % expected
    assert 0.3 < np.mean(values) < 0.7


def test_another_law_is_found() -> None:
    rng = np.random.default_rng(2)
    for _ in range(3):
        found = exchangeability_test(draw(rng, factor=1.5), permutations=199)
        assert found is not None
        assert found.p_value == pytest.approx(1 / 200)
        assert found.statistic > 3
        assert 0 < found.informative <= 600


def test_the_same_data_give_the_same_answer() -> None:
    whole = draw(np.random.default_rng(3))
    assert exchangeability_test(whole, permutations=99) == exchangeability_test(
        whole, permutations=99
    )


def test_nothing_to_compare() -> None:
    rng = np.random.default_rng(4)
    proxies, losses = rng.random(60), rng.random((60, 1))
    assert exchangeability_test(Sample.from_arrays(proxies, losses, (1,))) is None
    few = Sample.from_arrays(proxies[:12], losses[:12], (1,), natural=np.arange(12) < 6)
    assert exchangeability_test(few) is None
    equal = Sample.from_arrays(proxies, np.zeros((60, 1)), (1,), natural=np.arange(60) % 2 == 0)
    found = exchangeability_test(equal, permutations=19)
    assert found is not None
    assert found.p_value == 1.0
