"""Moments that a model could recognise from one another share a group."""

from __future__ import annotations

import numpy as np

from safemargin.study.kinship import WINDOW, find_kin


def play(seed: int, steps: int = 200) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, 3)).astype(np.float32)


def groups(scores: list[np.ndarray], steps: list[int], reach: int, **more: object) -> list[int]:
    games = more.get("games", list(range(len(steps))))
    training = np.array(more.get("training", [False] * len(steps)))
    found = find_kin(scores, steps, games, training, reach).groups.tolist()  # type: ignore[arg-type]
    order = list(dict.fromkeys(found))  # which number a group has does not matter
    return [order.index(group) for group in found]


def test_moments_near_one_another_on_a_shared_play_share_a_group() -> None:
    first = play(0)
    later = np.concatenate([play(1, 10), first[30:]])  # joins the same play, 20 steps earlier
    at = [100, 80 + 15]  # 15 steps after the first moment's place in it
    assert groups([first, later], at, reach=20) == [0, 0]
    assert groups([first, later], at, reach=5) == [0, 1]
    assert groups([first, play(2)], at, reach=200) == [0, 1]


def test_moments_of_one_game_share_a_group_and_links_chain() -> None:
    a, b, c = play(0), play(1), play(2)
    assert groups([a, b, c], [50, 50, 50], 10, games=["x", "y", "x"]) == [0, 1, 0]
    # A third moment links two that are too far apart to be linked themselves.
    assert groups([a, a, a], [50, 65, 80], reach=20) == [0, 0, 0]
    assert groups([a, a], [50, 80], reach=20) == [0, 1]


def test_moments_for_training_only_link_no_others() -> None:
    a = play(0)
    found = find_kin([a, a, a], [50, 80, 65], [0, 1, 2], np.array([False, False, True]), 20)
    assert found.groups.tolist() == [0, 1, -1]
    assert found.kin.tolist() == [[2, 0], [2, 1]]


def test_stretches_that_say_nothing_link_nothing() -> None:
    still = np.zeros((200, 3), np.float32)
    assert groups([still, still], [100, 100], reach=50) == [0, 1]
    short = play(0, WINDOW - 1)
    assert groups([short, short], [3, 3], reach=50) == [0, 1]
