"""Which steps are chosen: worked examples and the rules that always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safemargin.core.records import Episode, EpisodeKey, Phase
from safemargin.core.settings import Settings
from safemargin.errors import PolicyFault
from safemargin.study.selection import eligible_steps, select_natural, select_spread

PLAIN = Settings(exclude_last=0)


def episode(values: list[float], index: int = 0, phase: Phase = "spread", **more: int) -> Episode:
    """An episode with these proxies and nothing else of interest."""
    steps = len(values)
    return Episode(
        key=EpisodeKey(phase, index),
        seed=0,
        opening=more.get("opening", 0),
        actions=np.zeros(steps, np.int64),
        rewards=np.zeros(steps),
        scores=np.zeros((steps, 2), np.float32),
        proxies={"p": np.array(values)},
        terminated=True,
        truncated=False,
        cut=False,
    )


def test_the_last_steps_and_the_opening_are_left_out() -> None:
    settings = Settings()
    assert eligible_steps(opening=3, steps=100, cut=False, settings=settings) == range(3, 68)
    assert not eligible_steps(opening=0, steps=32, cut=False, settings=settings)
    assert not eligible_steps(opening=90, steps=100, cut=False, settings=settings)


def test_of_a_cut_episode_only_steps_with_a_whole_horizon() -> None:
    settings = Settings()  # horizon 459
    assert eligible_steps(opening=0, steps=1000, cut=True, settings=settings) == range(541)


def test_the_farthest_from_the_nearest_is_taken() -> None:
    # Selected so far after two episodes of one step each: 0 and 10.
    # Third: distances to the nearest of {0, 10} are 1, 4, 3, 2 → step 1 (value 4).
    # Fourth, nearest of {0, 4, 10}: 5 → 1; 7.5 → 2.5; 20 → 10 → step 2.
    episodes = [
        episode([0.0], 0),
        episode([10.0], 1),
        episode([1.0, 4.0, 7.0, 12.0], 2),
        episode([5.0, 7.5, 20.0], 3),
    ]
    chosen = [moment.step for moment, _ in select_spread(episodes, "p", PLAIN)]
    assert chosen == [0, 0, 1, 2]


def test_ties_are_broken_evenly() -> None:
    counts = np.zeros(4, int)
    for seed in range(2000):
        settings = Settings(exclude_last=0, seed=seed)
        pair = [episode([0.0], 0), episode([1.0, -1.0, 0.5, 1.0], 1)]
        *_, (moment, _) = select_spread(pair, "p", settings)
        counts[moment.step] += 1
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] - 2000 / 3).max() < 5 * np.sqrt(2000 * 2 / 9)


def test_natural_choice_is_even_over_eligible_steps() -> None:
    counts = np.zeros(50, int)
    settings = Settings(n_values=(1, 2, 4))
    for index in range(4600):
        counts[select_natural(episode([0.0] * 50, index, opening=0), settings).step] += 1
    assert counts[46:].sum() == 0
    assert np.abs(counts[:46] - 100).max() < 5 * 10


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=8), min_size=1, max_size=12))
def test_against_brute_force(values: list[list[float]]) -> None:
    episodes = [episode(row, index) for index, row in enumerate(values)]
    selected: list[float] = []
    for moment, current in select_spread(episodes, "p", PLAIN):
        row = current.proxies["p"]
        if selected:
            distances = [min(abs(value - known) for known in selected) for value in row]
            assert distances[moment.step] == max(distances)
        selected.append(row[moment.step])
    assert len(selected) == len(values)


def test_more_episodes_never_change_earlier_choices() -> None:
    generator = np.random.default_rng(0)
    episodes = [episode(list(generator.normal(size=20)), index) for index in range(30)]
    few = [moment for moment, _ in select_spread(episodes[:10], "p", PLAIN)]
    many = [moment for moment, _ in select_spread(episodes, "p", PLAIN)]
    assert many[:10] == few


def test_a_proxy_that_is_not_finite_is_refused() -> None:
    with pytest.raises(PolicyFault, match="'p' is not finite everywhere in episode spread 0"):
        list(select_spread([episode([0.0, float("nan")])], "p", PLAIN))
