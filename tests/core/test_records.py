"""The names of episodes, and the episodes of tuples."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.cli.demo import SHOWN_N, most_critical
from safemargin.core.records import EpisodeKey, Tuples


@pytest.mark.parametrize(
    ("key", "plain", "title", "name"),
    [
        (EpisodeKey("natural", 17), "natural 17", "natural 17, life 1", "natural-17-0"),
        (EpisodeKey("spread", 3, 1), "spread 3, life 2", "spread 3, life 2", "spread-3-1"),
    ],
)
def test_people_count_lives_from_1_and_ids_from_0(
    key: EpisodeKey, plain: str, title: str, name: str
) -> None:
    assert str(key) == plain
    assert key.title(has_lives=True) == title
    assert key.title(has_lives=False) == f"{key.phase} {key.index}"
    assert key.id == name


def tuples(lives: list[int]) -> Tuples:
    """Three natural moments of game 4, of which the last loses most."""
    losses = np.array([[0.1, 0.2], [0.0, 0.0], [0.5, 0.9]])
    return Tuples(
        phases=np.array(["natural"] * 3),
        indices=np.array([4, 4, 4]),
        lives=np.array(lives),
        steps=np.array([7, 8, 9]),
        proxies=np.zeros(3),
        criticalities=losses,
        half_widths=np.zeros((3, 2)),
        trials=np.ones((3, 2), dtype=np.int64),
        n_values=(1, SHOWN_N),
        proxy="q_range",
    )


def test_tuples_know_the_life_of_each_moment() -> None:
    assert tuples([0, 1, 2]).keys == [EpisodeKey("natural", 4, life) for life in range(3)]


def test_the_demonstration_names_the_life_of_the_most_critical_moment() -> None:
    episode, step, text = most_critical(tuples([0, 1, 2]))
    assert (episode, step) == ("natural 4, life 3", 9)
    assert "step 9 of episode natural 4, life 3, where" in text
    assert most_critical(tuples([0, 0, 0]))[0] == "natural 4"
