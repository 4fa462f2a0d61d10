"""The statistics of a gate, on arrays small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.validation.effects import (
    Change,
    Values,
    chance_of_verdict,
    chance_of_worse,
    change_by_groups,
    change_from,
    change_of_means,
    games_for,
    verdict_of,
)


def values(*numbers: float, games: tuple[int, ...] | None = None) -> Values:
    labels = range(len(numbers)) if games is None else games
    return Values(np.array(numbers, dtype=float), np.array(labels))


def known(standard_error: float = 1.0, games: int = 100) -> Change:
    return Change(0.0, 0.0, 0.0, standard_error, games - 1, games, 0.0)


def test_paired_differences_have_the_spread_of_the_differences() -> None:
    old, new = values(1, 2, 3, 4), values(2, 2, 4, 4)
    found = change_of_means(old, new, paired=True, span=0.0)
    # Differences 1, 0, 1, 0: their variance is 1/3, that of their mean 1/12.
    assert (found.old, found.new, found.change) == (2.5, 3.0, 0.5)
    assert found.standard_error == pytest.approx(math.sqrt(1 / 12))
    assert (found.degrees, found.games) == (3, 4)


def test_unpaired_spreads_add_up() -> None:
    old, new = values(1, 2, 3, 4), values(2, 2, 4, 4)
    found = change_of_means(old, new, paired=False, span=0.0)
    # Variances of the values 5/3 and 4/3; of the means 5/12 and 1/3. Welch: 0.75² / Σ v² / 3.
    assert found.standard_error == pytest.approx(math.sqrt(5 / 12 + 1 / 3))
    assert found.degrees == pytest.approx(0.75**2 / (((5 / 12) ** 2 + (1 / 3) ** 2) / 3))


def test_equal_agents_on_equal_games_are_still_not_known_exactly() -> None:
    same = values(0, 0, 1, 1)
    found = change_of_means(same, same, paired=True, span=1.0)
    assert found.standard_error == pytest.approx(1 / 6)  # span / (games + 2)


def test_moments_of_one_game_count_once() -> None:
    once = change_of_means(values(1, 3), values(4, 4), paired=True, span=0.0)
    twice = change_of_means(
        values(1, 1, 3, 3, games=(0, 0, 1, 1)),
        values(4, 4, 4, 4, games=(0, 0, 1, 1)),
        paired=True,
        span=0.0,
    )
    assert (twice.standard_error, twice.games) == (once.standard_error, once.games)


def test_a_mean_beside_a_promise() -> None:
    found = change_from(0.25, values(0, 1, 0, 1), old=0.5, span=0.0)
    assert (found.old, found.new, found.change) == (0.5, 0.5, 0.25)
    assert found.standard_error == pytest.approx(math.sqrt(1 / 12))


def test_leaving_out_groups_gives_a_mean_its_own_spread() -> None:
    old, new = np.zeros(4), np.array([2.0, 2.0, 4.0, 4.0])

    def mean(of: np.ndarray) -> object:
        return lambda out: float(np.delete(of, [] if out is None else [out]).mean())

    groups = (np.arange(4), np.arange(4))
    found = change_by_groups((mean(old), mean(new)), groups, games=4, paired=True, span=0.0)  # type: ignore[arg-type]  # lambdas
    assert found.change == 3.0
    assert found.standard_error == pytest.approx(math.sqrt(1 / 3))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.5, 0.5, "no difference"),
        (-0.9, -0.1, "no difference"),  # surely lower, and surely not by what matters
        (-1.0, 1.0, "no difference"),
        (-1.5, -0.1, "worse"),
        (-5.0, -2.0, "worse"),
        (0.1, 1.5, "better"),
        (-0.5, 1.5, "no worse"),
        (-1.5, 0.5, "cannot tell"),
        (-5.0, 5.0, "cannot tell"),
        (-math.inf, math.inf, "cannot tell"),
    ],
)
def test_verdicts_where_1_matters(low: float, high: float, verdict: str) -> None:
    assert verdict_of(low, high, 1.0) == verdict


def test_no_verdict_on_nonsense() -> None:
    with pytest.raises(InvalidInput, match=r"no verdict on \[1.0, 0.0\] where 1.0 matters"):
        verdict_of(1.0, 0.0, 1.0)
    with pytest.raises(InvalidInput, match="no verdict on .* where nan matters"):
        verdict_of(0.0, 1.0, math.nan)


def test_the_interval_is_students() -> None:
    assert known(games=11).half_width(0.025) == pytest.approx(2.228, abs=1e-3)  # 10 degrees
    assert known(games=11).half_width(0.025, games=1e9) < 1e-3
    assert known(games=1).half_width(0.025) == math.inf


def test_power_at_twice_the_half_width_and_more() -> None:
    change = known(standard_error=1.0, games=10_000)
    width = change.half_width(0.025)  # 1.96
    assert chance_of_worse(change, width, width, 0.025) == pytest.approx(0.5, abs=0.01)
    assert chance_of_worse(change, width + 0.8416, 1.5 * width, 0.025) == pytest.approx(
        0.8, abs=0.01
    )
    # Where the interval is narrow, a deterioration that hardly matters is "no difference".
    assert chance_of_worse(change, 5.0, 100.0, 0.025) < 1e-6
    assert chance_of_worse(known(games=1), 5.0, 1.0, 0.025) == 0.0


def test_how_many_games_decide() -> None:
    change = known(standard_error=1.0, games=100)

    def chance(games: float) -> float:
        return chance_of_worse(change, 1.0, 1.0, 0.025, games)

    needed = games_for(chance)
    # (1.96 + 0.84)² / 1² times the variance of one game, 100, and a little for Student's t.
    assert needed == pytest.approx(785, abs=10)
    assert chance(needed - 1) < 0.8 <= chance(needed)
    assert games_for(lambda games: 0.5) is None
    with pytest.raises(InvalidInput, match="the power must lie between 0 and 1, got 1"):
        games_for(chance, power=1)


def test_no_number_of_games_decides_at_the_very_border() -> None:
    change = known()
    at_the_border = games_for(lambda games: chance_of_verdict(change, 0.0, 0.0, 0.025, games))
    assert at_the_border is None
    assert chance_of_verdict(change, 0.0, 100.0, 0.025, 100) == 1.0
