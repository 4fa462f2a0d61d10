"""The gap error: what powers of two miss when S is dense."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.margins.bounds.sample import Sample
from safemargin.validation.gaps import gap_error, is_dense, powers_of_two


def test_which_n() -> None:
    assert powers_of_two(range(1, 17)) == (1, 2, 4, 8, 16)
    assert is_dense(range(1, 33))
    assert not is_dense((1, 2, 4))
    assert not is_dense((1, 2))  # nothing lies between them


def test_a_peak_in_a_gap_by_hand() -> None:
    """n = 3 loses 5, all others their n: the powers of two never see it."""
    count = 200
    losses = np.tile([1.0, 2.0, 5.0, 4.0], (count, 1))
    whole = Sample.from_arrays(np.linspace(0, 1, count), losses, (1, 2, 3, 4))
    found = gap_error(whole, confidence=0.9, tolerances=[1.5, 4.5, 5.0])
    assert found is not None
    assert found.thin == (1, 2, 4)
    assert found.missed == (0.0, 0.0, 1.0)  # C_4 is 5, not 4
    assert found.worst_missed == (0.0, 0.0, 1.0)
    low, middle, high = found.rows
    assert (low.dense_margin, low.thin_margin, low.thin_failures) == (1, 1, 0)
    # At 4.5 the dense margin stops at 2; the thin one grants 4, and 3 breaks it always.
    assert (middle.dense_margin, middle.thin_margin) == (2, 4)
    assert (middle.dense_failures, middle.thin_failures) == (0, 1)
    assert (high.dense_margin, high.thin_margin, high.thin_failures) == (4, 4, 0)


def test_where_losses_rise_with_n_only_resolution_is_lost() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(300)
    losses = (proxies + rng.random(300))[:, None] * np.arange(1, 9)
    found = gap_error(
        Sample.from_arrays(proxies, losses, range(1, 9)), tolerances=np.array([3.0, 6.0])
    )
    assert found is not None
    assert found.missed == pytest.approx((0, 0, 0, 0))
    assert [row.tolerance for row in found.rows] == [3.0, 6.0]
    assert all(row.thin_margin < row.dense_margin for row in found.rows)


def test_a_thin_study_cannot_know() -> None:
    rng = np.random.default_rng(0)
    assert gap_error(Sample.from_arrays(rng.random(50), rng.random((50, 3)), (1, 2, 4))) is None
