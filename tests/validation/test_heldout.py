"""Cross-validation: intervals, power, coverage and the chain, by hand and against plain loops."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from safemargin.errors import InvalidInput, MissingExtra
from safemargin.margins.bounds.ranks import assign_folds
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.methods import fit_bound
from safemargin.validation.heldout import (
    HeldOut,
    chain_rows,
    clopper_pearson,
    coverage_rows,
    hold_out,
    hold_out_all,
    moments_to_show,
    natural_bins,
    typical_tolerances,
)


def test_clopper_pearson_by_hand() -> None:
    share = clopper_pearson(0, 10)
    assert (share.share, share.low) == (0.0, 0.0)
    assert share.high == pytest.approx(1 - 0.025 ** (1 / 10))  # (1 − p)^10 = 0.025
    share = clopper_pearson(10, 10)
    assert (share.low, share.high) == (pytest.approx(0.025 ** (1 / 10)), 1.0)
    assert clopper_pearson(0, 0).share is None
    assert (clopper_pearson(0, 0).low, clopper_pearson(0, 0).high) == (0.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.data())
def test_clopper_pearson_inverts_the_binomial(tested: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, tested))
    share = clopper_pearson(count, tested)
    assert share.low <= count / tested <= share.high
    if count:  # at the lower end, this many or more have a chance of 2.5 %
        assert binom.sf(count - 1, tested, share.low) == pytest.approx(0.025, abs=1e-6)
    if count < tested:
        assert binom.cdf(count, tested, share.high) == pytest.approx(0.025, abs=1e-6)


def test_power() -> None:
    assert moments_to_show(0.01) == 3118
    assert moments_to_show(0.03) < 400
    needed = moments_to_show(0.01)
    limit = binom.ppf(0.05, needed, 0.95)  # fewer held than this is a finding at 5 %
    assert binom.cdf(limit, needed, 0.94) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: clopper_pearson(3, 2), "0 ≤ count ≤ tested, got 3 of 2"),
        (lambda: clopper_pearson(1, 2, 1.0), "level of an interval must lie between 0 and 1"),
        (lambda: moments_to_show(0.0), "miss must lie between 0 and the confidence, got 0"),
        (lambda: moments_to_show(0.01, power=1), "power must lie between 0 and 1, got 1"),
        (lambda: hold_out(sample(), method="paper", confidence=0.9, folds=1), "at least 2 folds"),
        (lambda: hold_out(sample(), method="papr", confidence=0.9), "did you mean 'paper'"),
    ],
)
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        call()


def sample(moments: int = 200, **more: Any) -> Sample:
    rng = np.random.default_rng(0)
    proxies = rng.gamma(2, 1, moments)
    losses = proxies[:, None] * rng.random((moments, 2))
    natural = more.pop("natural", np.arange(moments) % 2 == 0)
    return Sample.from_arrays(proxies, losses, (1, 2), natural=natural, **more)


def small() -> HeldOut:
    """Four natural moments and one spread, with bounds 1 (n = 1) and 2 (n = 4)."""
    losses = np.array([[0.5, 0.4], [1.5, 0.0], [0.9, 2.5], [0.0, 0.0], [9.0, 9.0]])
    whole = Sample(
        proxies=np.repeat(np.arange(5.0)[:, None], 2, axis=1),
        losses=losses,
        natural=np.array([True, True, True, True, False]),
        groups=np.arange(5),
        moments=np.arange(5),
        n_values=(1, 4),
        looks_at_n=False,
    )
    upper = np.tile([1.0, 2.0], (5, 1))
    upper[3] = math.inf  # no bound for the last natural one
    bins, edges = natural_bins(whole)
    return HeldOut(whole, upper, np.zeros(5, dtype=bool), bins, edges, 0.9, "paper", [])


def test_coverage_and_chain_by_hand() -> None:
    found = small()
    natural = found.phase("natural")
    # C_n: (0.5, 0.5), (1.5, 1.5), (0.9, 2.5); the fourth has no bound and is not tested.
    first, last = (found.coverage(natural, column) for column in (0, 1))
    assert (first.count, first.tested) == (2, 3)
    assert (last.count, last.tested) == (2, 3)
    assert found.margins(1.0).tolist() == [1, 1, 1, 0, 1]
    assert found.margins(2.0).tolist() == [4, 4, 4, 0, 4]
    assert found.margins(0.5).tolist() == [0] * 5
    assert found.chain_failures(1.0).tolist() == [False, True, False, False, True]
    assert found.chain_failures(2.0).tolist() == [False, False, True, False, True]
    assert not found.chain_failures(0.5).any()  # a margin of 0 cannot fail
    rows = chain_rows(found, [1.0, 2.0])
    assert [(row.phase, row.tolerance, row.failed.count) for row in rows] == [
        *[("natural", 1.0, 1), ("natural", 2.0, 1), ("spread", 1.0, 1), ("spread", 2.0, 1)]
    ]
    assert [row.failed.tested for row in rows] == [3, 3, 1, 1]  # nor in the chain
    assert rows[1].mean_margin == 3.0
    table = coverage_rows(found)
    assert len(table) == 2 * 6 * 3  # phases × (all and five parts) × (all and two n)
    assert table[0].held == found.coverage(natural)


def test_a_bound_that_falls_with_n_grants_nothing_beyond_the_n_it_fails_at() -> None:
    once = small()  # the paper's method bounds each n by itself
    falling = replace(once, upper=np.tile([2.0, 1.0], (5, 1)))
    assert falling.margins(1.5).tolist() == [0] * 5
    assert not falling.chain_failures(1.5).any()
    assert falling.margins(2.0).tolist() == [4] * 5


def test_the_runs_of_a_moment_are_one_test() -> None:
    once = small()
    rows = np.repeat(np.arange(5), 3)
    thrice = replace(
        once,
        sample=replace(once.sample.take(rows), moments=rows, estimand="single-run"),
        upper=once.upper[rows],
        above=once.above[rows],
        bins=once.bins[rows],
    )
    assert len(thrice.sample) == 15
    assert coverage_rows(thrice) == coverage_rows(once)
    assert chain_rows(thrice, [1.0, 2.0]) == chain_rows(once, [1.0, 2.0])


def test_every_moment_is_judged_by_a_fit_without_its_group() -> None:
    whole = sample(groups=np.arange(200) // 4)
    found = hold_out(whole, method="paper", confidence=0.9)
    folds = assign_folds(whole, 5)
    kept = folds != 2
    bound = fit_bound(
        whole.proxies[kept, 0], whole.losses[kept], (1, 2), confidence=0.9, method="paper"
    )
    row = int(np.flatnonzero((folds == 2) & ~found.above)[3])
    np.testing.assert_array_equal(found.upper[row], bound.at(whole.proxies[row, 0]))


def test_two_groups_are_too_few_for_cross_validation() -> None:
    with pytest.raises(InvalidInput, match="belong to 2 groups .*, and it takes 3 to judge"):
        hold_out(sample(groups=np.arange(200) % 2), method="calibrated", confidence=0.9)


def test_variants_that_cannot_be_fitted_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    ticks: list[int] = []
    found = hold_out_all(
        sample(),
        {"boosted": ("boosted", {}), "paper": ("paper", {})},
        confidence=0.9,
        after_each=lambda: ticks.append(1),
    )
    assert isinstance(found["boosted"], MissingExtra)
    assert isinstance(found["paper"], HeldOut)
    assert len(ticks) == 10


def test_typical_tolerances() -> None:
    assert typical_tolerances(np.array([1.0, 2.0, 3.0, math.inf])) == [2.0]
    assert typical_tolerances(np.linspace(0, 4, 101)) == [1.0, 2.0, 3.0]
    assert typical_tolerances(np.full(3, math.inf)) == [1.0]
    assert typical_tolerances(np.zeros(3)) == [1.0]
