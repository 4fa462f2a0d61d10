"""The promise about the margin itself: few of the margins that are granted fail."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import fit_bound, method_for

N_VALUES = (1, 2, 4)


def granted(proxies: Floats, losses: Floats, *tolerances: float, **options: object) -> Margins:
    bound = fit_bound(proxies, losses, N_VALUES, method="granted", tolerances=tolerances, **options)
    return Margins(bound)


def stairs(count: int = 300) -> tuple[Floats, Floats]:
    """Losses by proxy: below a third none, then only for n = 4, above two thirds for all n."""
    proxies = (np.arange(count) + 0.5) / count
    third, two = proxies > 1 / 3, proxies > 2 / 3
    return proxies, np.stack([two, two, third], axis=1).astype(float)


def test_each_part_of_the_range_is_granted_what_it_can_afford() -> None:
    margins = granted(*stairs(), 0.5)
    assert margins.lookup([0.1, 0.3, 0.4, 0.6, 0.8], 0.5).margin.tolist() == [4, 4, 2, 2, 0]
    promise = margins.bound.details["promises"][0]
    assert promise["tolerance"] == 0.5
    assert sum(promise["failed_moments"]) <= 0.05 * sum(promise["granted_moments"])


def test_a_margin_is_granted_at_the_named_tolerances_and_above_only() -> None:
    proxies, losses = stairs()
    margins = granted(proxies, losses * np.array([0.3, 0.6, 2.0]), 0.4, 1.0)
    assert margins.lookup(0.5, [0.39, 0.4, 0.99, 1.0, 5.0]).margin.tolist() == [0, 2, 2, 2, 2]
    assert margins.lookup(0.9, [0.39, 0.4, 0.99, 1.0]).margin.tolist() == [0, 1, 1, 2]


def test_margins_fall_with_the_proxy() -> None:
    rng = np.random.default_rng(0)
    proxies = rng.random(400)
    losses = proxies[:, None] * rng.exponential(1, (400, 1)) * np.array([0.2, 0.4, 0.8])
    margins = granted(proxies, losses, 0.5)
    row = margins.heatmap([0.5])[0]
    assert (np.diff(row) <= 0).all()
    assert row[0] > row[-1]


def test_at_most_the_promised_share_fails_on_fresh_moments() -> None:
    """Over all granted margins, on average over repetitions; the slow test has more laws."""
    rng = np.random.default_rng(1)

    def draw(count: int) -> tuple[Floats, Floats]:
        proxies = rng.random(count)
        size = np.exp(4 * (proxies - 0.7))
        return proxies, size[:, None] * np.abs(rng.normal(size=(count, 1))) * [0.3, 0.6, 1.2]

    failed = given = 0
    for _ in range(30):
        margins = granted(*draw(300), 0.5)
        proxies, losses = draw(2000)
        found = margins.lookup(proxies, 0.5).margin
        steps = np.searchsorted([0, *N_VALUES], found)
        worst = np.maximum.accumulate(losses, axis=1)[np.arange(2000), np.maximum(steps - 1, 0)]
        failed += int(((worst > 0.5) & (steps > 0)).sum())
        given += int((steps > 0).sum())
    assert given > 20_000
    assert failed / given < 0.05


def test_too_few_moments_are_granted_nothing_and_told_why() -> None:
    rng = np.random.default_rng(2)
    margins = granted(rng.random(15), np.zeros((15, 3)), 0.5)
    assert margins.lookup(0.5, 0.5).margin == 0
    assert "with at least 19 of the 15 natural moments" in margins.notes[0]


def test_what_the_promise_cannot_be_made_for() -> None:
    proxies, losses = stairs()
    with pytest.raises(InvalidInput, match="made for tolerances that you name"):
        granted(proxies, losses)
    with pytest.raises(InvalidInput, match="needs a proxy with one value per step"):
        granted(np.repeat(proxies[:, None], 3, axis=1), losses, 0.5)
    with pytest.raises(InvalidInput, match="tolerances must be at least 0"):
        granted(proxies, losses, -1.0)
    with pytest.raises(InvalidInput, match="the promise 'margins' is unknown"):
        method_for("margins", "calibrated")  # type: ignore[arg-type]
    assert method_for("bound", "paper") == "paper"
    assert method_for("margin", "calibrated") == "granted"
