"""Streams depend on all of their keys, and on nothing else."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from safemargin.core.seeding import (
    Purpose,
    environment_seed,
    hashed_seed,
    plain_generator,
    stream,
    streams,
)


def test_streams_repeat_and_differ() -> None:
    keys = [
        (0, Purpose.RESET, 0, 0),
        (1, Purpose.RESET, 0, 0),
        (0, Purpose.OPENING, 0, 0),
        (0, Purpose.RESET, 1, 0),
        (0, Purpose.RESET, 0, 1),
        (0, Purpose.RESET, 0),
    ]
    draws = [tuple(stream(*key).random(3)) for key in keys]
    assert draws == [tuple(stream(*key).random(3)) for key in keys]
    assert all(first != second for first, second in combinations(draws, 2))


def test_a_shorter_draw_is_a_prefix_of_a_longer_one() -> None:
    """What makes trials nested: n random actions are the first n of any longer perturbation."""
    short = stream(0, Purpose.TRIAL_ACTIONS, 1).random((3, 2))
    long = stream(0, Purpose.TRIAL_ACTIONS, 1).random((9, 2))
    assert (long[:3] == short).all()


def test_values_that_stored_studies_depend_on() -> None:
    """These must never change: a study would continue with different episodes."""
    assert [environment_seed(0, 0, index) for index in range(3)] == [
        1182409218,
        20698905,
        1513755352,
    ]
    assert stream(7, Purpose.TRIAL_ACTIONS, 1, 2).integers(1000, size=3).tolist() == [133, 465, 142]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**40])
@pytest.mark.parametrize("keys", [(), (3,), (0, 5), (0, 5, 0, 100), (1, 2, 3, 2**33)])
def test_many_streams_are_the_single_ones(seed: int, keys: tuple[int, ...]) -> None:
    last = [0, 1, 99, 2**32 - 1]
    found = [each.random(3) for each in streams(seed, Purpose.TRIAL_ACTIONS, keys, last)]
    single = [stream(seed, Purpose.TRIAL_ACTIONS, *keys, number).random(3) for number in last]
    assert np.array_equal(found, single)
    assert not list(streams(seed, Purpose.TRIAL_ACTIONS, keys, []))


def test_values_outside_of_the_streams() -> None:
    """Single runs, fleets and Atari's no-ops depend on these: they must never change."""
    assert plain_generator(3).integers(1000, size=3).tolist() == [811, 85, 179]
    assert (hashed_seed(5), hashed_seed(5, 1)) == (16823399, 3796490668)
    assert plain_generator(None).random() != plain_generator(None).random()
