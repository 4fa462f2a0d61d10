"""Forecasts: arithmetic worked out by hand, and ranges that hold as often as they say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from safemargin.core.records import EpisodeKey, Phase
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import ALWAYS_REPEATED
from safemargin.errors import StudyIncomplete
from safemargin.study.costs import (
    ENOUGH,
    Cost,
    Piece,
    representative,
    whole_moments,
    without_clock,
)
from safemargin.study.forecast import Forecast, Range, forecast, predict

SETTINGS = Settings(n_values=(1, 2))


def test_a_sum_by_hand() -> None:
    # Of 10 more values like 2 and 4, whose mean is 3: the squares 1 + 1, and 1.5² for the usual
    # spread, over two degrees of freedom are 2.125. The sum 30 has the variance
    # 10² · 2.125 · (1/2 + 1/10) = 127.5; the 95 % quantile is 2.91999.
    found = predict([np.array([2.0, 4.0])], [10])
    factor = math.exp(2.91999 * math.sqrt(127.5) / 30)
    assert found.expected == 30.0
    assert found.low == pytest.approx(30 / factor, rel=1e-5)
    assert found.high == pytest.approx(30 * factor, rel=1e-5)


def test_two_phases_by_hand() -> None:
    # Variances 4² · 2.125 · (1/2 + 1/4) = 25.5 and 2² · (7/2)²/2 · (1/2 + 1/2) = 24.5, both with
    # two degrees of freedom: 50² / (25.5²/2 + 24.5²/2) = 3.9984 together; the quantile 2.13204.
    found = predict([np.array([2.0, 4.0]), np.array([7.0, 7.0])], [4, 2])
    assert found.expected == 4 * 3 + 2 * 7
    assert found.high == pytest.approx(26 * math.exp(2.13204 * math.sqrt(50) / 26), rel=1e-4)


def test_one_value_has_the_usual_spread_only() -> None:
    # One degree of freedom: the quantile 6.31375; the variance 10² · 2² · (1 + 1/10) = 440.
    found = predict([np.array([4.0]), np.empty(0)], [10, 0])
    assert found.high == pytest.approx(40 * math.exp(6.31375 * math.sqrt(440) / 40), rel=1e-5)


def test_equal_values_leave_no_doubt_where_they_are_no_chance() -> None:
    samples = [np.full(3, 48.0), np.full(2, 48.0)]
    assert predict(samples, [7, 8], exact=True) == Range(720, 720, 720)
    assert predict(samples, [7, 8]).low < 720
    assert predict([np.zeros(3), np.empty(0)], [7, 0]) == Range(0, 0, 0)
    assert predict([np.array([1.0, 5.0]), np.empty(0)], [0, 0]) == Range(0, 0, 0)


def test_a_lone_value_joins_the_others() -> None:
    alone = predict([np.array([2.0]), np.array([4.0, 6.0])], [5, 5])
    assert alone == predict([np.array([2.0, 4.0, 6.0])], [10])


@pytest.mark.parametrize("spread", [0.3, 0.6])
@pytest.mark.parametrize("measured", [1, 2, 6])
def test_ranges_hold_nine_times_out_of_ten(spread: float, measured: int) -> None:
    """Log-normal costs, two phases of 200 moments, a few of each measured."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        natural, dear = np.exp(spread * generator.normal(size=(2, 200)) + [[0.0], [0.5]])
        found = predict([natural[:measured], dear[:measured]], [200, 200])
        held += found.low <= natural.sum() + dear.sum() <= found.high
    assert held >= 870


def pieces(
    episodes: dict[EpisodeKey, tuple[int, int]], moments: dict[EpisodeKey, tuple[int, int]]
) -> dict[Piece, Cost]:
    """Episodes by their steps and moments to choose; moments by their steps for n = 1 and 2."""
    costs = {
        (key, 0): Cost(steps, steps / 10, moments=usable, stored=1000.0)
        for key, (steps, usable) in episodes.items()
    }
    for key, both in moments.items():
        for n, steps in zip((1, 2), both, strict=True):
            costs[key, n] = Cost(steps, steps / 10, trials=48, stored=100.0)
    return costs


def plan(
    sample: dict[Piece, Cost], natural: int, spread: int, done: dict[Piece, Cost] | None = None
) -> Forecast:
    wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
    return forecast(sample, SETTINGS, wanted, done=done or {})


def keys(phase: Phase, count: int) -> list[EpisodeKey]:
    return [EpisodeKey(phase, index) for index in range(count)]


def test_a_new_study() -> None:
    first, short, second = keys("natural", 3)
    costs = pieces(
        {first: (10, 1), short: (4, 0), second: (10, 1)}, {first: (30, 50), second: (40, 50)}
    )
    found = plan(costs, natural=12, spread=0)
    episodes, one, two = found.stages
    # 24 steps gave two moments: 12 for each, the episode that was too short included.
    assert episodes.steps.expected == pytest.approx(12 * 12)
    assert episodes.pieces == 12
    assert one.steps.expected == 12 * 35
    assert two.steps.expected == 12 * 50
    assert one.worker_seconds.expected == pytest.approx(42)
    assert found.trials == Range(12 * 96, 12 * 96, 12 * 96)
    assert found.steps.high == pytest.approx(sum(stage.steps.high for stage in found.stages))
    assert found.left == {"natural": 12, "spread": 0}
    assert found.sample == {"natural": 2, "spread": 0}
    assert found.disk_bytes == 12 * (3000 / 2 + 200)


def test_lives_of_one_game_share_its_cost() -> None:
    lives = [EpisodeKey("natural", 0, life) for life in range(3)]
    costs = pieces(dict.fromkeys(lives, (10, 1)), dict.fromkeys(lives, (1, 1)))
    assert plan(costs, natural=9, spread=0).stages[0].steps.expected == 90


def test_an_existing_study_needs_only_the_rest() -> None:
    first, second, third = *keys("natural", 2), EpisodeKey("spread", 0)
    costs = pieces(
        dict.fromkeys((first, second, third), (10, 1)), dict.fromkeys((first, second), (20, 20))
    )
    found = plan(costs, natural=5, spread=1, done=costs)
    episodes, one, _ = found.stages
    assert episodes.steps.expected == 30  # three natural ones
    assert one.steps.expected == 80  # and the spread one, whose episode is there
    assert found.left == {"natural": 3, "spread": 1}
    nothing = plan(costs, natural=2, spread=0, done=costs)
    assert nothing.worker_seconds == Range(0, 0, 0)


def test_a_cold_clock_is_left_out() -> None:
    every = keys("natural", 4)
    costs = pieces(dict.fromkeys(every, (10, 1)), dict.fromkeys(every, (20, 20)))
    for n in (0, 1, 2):
        costs[every[0], n] = replace(costs[every[0], n], seconds=1e6)
    found = plan(without_clock(costs, {every[0]}), natural=8, spread=0)
    assert found.stages[1].worker_seconds.expected == pytest.approx(8 * 2)
    assert found.stages[1].steps.expected == 8 * 20


def test_the_first_moments_count_only_where_there_are_few_others() -> None:
    every = keys("natural", ALWAYS_REPEATED + ENOUGH)
    costs = pieces(dict.fromkeys(every, (10, 1)), dict.fromkeys(every, (20, 20)))
    usual = {piece[0] for piece in representative(costs, (1, 2))}
    assert usual == set(every[ALWAYS_REPEATED:])
    last = every.pop()
    fewer = {piece: cost for piece, cost in costs.items() if piece[0] != last}
    assert representative(fewer, (1, 2)) == fewer
    pilot = {piece: cost for piece, cost in costs.items() if piece[0] == last}
    assert {piece[0] for piece in representative(fewer, (1, 2), pilot=pilot)} == usual


def test_nothing_to_plan_from() -> None:
    (key,) = keys("natural", 1)
    costs = pieces({key: (10, 1)}, {})
    costs[key, 1] = Cost(5, 0.5)
    assert whole_moments(costs, (1, 2)) == set()
    with pytest.raises(StudyIncomplete, match="no moment is measured for every n"):
        plan(costs, natural=5, spread=5)
