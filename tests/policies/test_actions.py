"""Random actions are uniform over what is allowed; the policy's action follows its scores."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.core.settings import Settings
from safemargin.errors import EnvironmentFault, InvalidInput, PolicyFault
from safemargin.policies.actions import PolicyActions, RandomActions

UNIFORMS = np.random.default_rng(0).random(60_000)


def test_discrete_actions_are_uniform_and_keep_the_start() -> None:
    random = RandomActions(gym.spaces.Discrete(3, start=5))
    drawn = [random(np.array([uniform])) for uniform in UNIFORMS]
    values, counts = np.unique(drawn, return_counts=True)
    assert list(values) == [5, 6, 7]
    # Binomial noise of a third of 60,000 is 115.
    assert np.abs(counts - 20_000).max() < 5 * 115
    assert isinstance(drawn[0], int)


def test_a_mask_leaves_the_legal_actions_equally_likely() -> None:
    random = RandomActions(gym.spaces.Discrete(4))
    mask = np.array([True, False, False, True])
    drawn = [random(np.array([uniform]), mask) for uniform in UNIFORMS]
    values, counts = np.unique(drawn, return_counts=True)
    assert list(values) == [0, 3]
    assert np.abs(counts - 30_000).max() < 5 * 122


def test_a_mask_without_legal_actions_is_the_environments_fault() -> None:
    with pytest.raises(EnvironmentFault, match="allows no action at all"):
        RandomActions(gym.spaces.Discrete(2))(np.array([0.5]), np.array([False, False]))


def test_box_actions_fill_the_box() -> None:
    space = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
    random = RandomActions(space)
    drawn = np.array([random(pair) for pair in UNIFORMS[:20_000].reshape(-1, 2)])
    assert drawn.dtype == np.float32
    assert all(space.contains(action) for action in drawn[:100])
    # The mean of n uniform draws over a span w has a deviation of w / √(12 n).
    assert np.abs(drawn.mean(axis=0) - [0, 5]).max() < 5 * 10 / np.sqrt(12 * 10_000)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 3, np.int64), (-2, 2, np.int32), (-128, 127, np.int8), (0, 255, np.uint8), (0, 1, bool)],
)
def test_whole_numbers_of_a_box_are_equally_likely(low: int, high: int, dtype: Any) -> None:
    random = RandomActions(gym.spaces.Box(low, high, (1,), dtype))
    count = high - low + 1
    even = (np.arange(8 * count) + 0.5) / (8 * count)  # eight in each of equally many parts
    drawn = np.concatenate([random(np.array([uniform])) for uniform in even])
    assert drawn.dtype == dtype
    assert drawn.tolist() == np.repeat(np.arange(low, high + 1), 8).tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
def test_the_ends_of_the_widest_box_are_in_it(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    random = RandomActions(gym.spaces.Box(limits.min, limits.max, (3,), dtype))
    first, middle, last = random(np.array([0.0, 0.5, np.nextafter(1, 0)])).tolist()
    assert (first, middle) == (limits.min, limits.min + (limits.max - limits.min + 1) // 2)
    assert limits.max - 2**11 < last <= limits.max


def test_every_number_of_a_box_has_its_own_bounds() -> None:
    space = gym.spaces.Box(np.array([[-1, 5]]), np.array([[1, 5]]), dtype=np.int64)
    drawn = [RandomActions(space)(np.array([u, u])).tolist() for u in (0.0, 0.3, 0.4, 0.7, 0.99)]
    assert drawn == [[[-1, 5]], [[-1, 5]], [[0, 5]], [[1, 5]], [[1, 5]]]


@pytest.mark.parametrize(
    "space", [gym.spaces.MultiDiscrete([2, 5], start=[0, 1]), gym.spaces.MultiBinary(3)]
)
def test_composed_actions_lie_in_their_space(space: gym.Space[Any]) -> None:
    random = RandomActions(space)
    drawn = [random(row) for row in UNIFORMS[: 600 * random.width].reshape(-1, random.width)]
    assert all(space.contains(action) for action in drawn)
    assert len({tuple(action) for action in drawn}) == {2: 10, 3: 8}[random.width]


def test_spaces_without_a_uniform_action_are_refused() -> None:
    with pytest.raises(InvalidInput, match="has no bounds"):
        RandomActions(gym.spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(InvalidInput, match="not for Dict; flatten the action space"):
        RandomActions(gym.spaces.Dict(a=gym.spaces.Discrete(2)))


def chooser(kind: Any = "logits", space: Any = None, **settings: Any) -> PolicyActions:
    return PolicyActions(space or gym.spaces.Discrete(3), kind, Settings(**settings))


def row(*scores: float) -> np.ndarray:
    return np.array(scores, np.float32)


def test_greedy_takes_the_first_best_action() -> None:
    assert chooser("q")(row(1, 3, 3)) == 1
    assert chooser("q", gym.spaces.Discrete(3, start=-1))(row(1, 3, 2)) == 0
    assert chooser("q")(row(1, 3, 2), None, np.array([True, False, True])) == 2


def test_sampling_follows_the_probabilities() -> None:
    sampled = chooser(action_choice="sampled")
    assert not sampled.deterministic
    logits = np.log(row(0.2, 0.5, 0.3))
    generator = np.random.default_rng(1)
    counts = np.bincount([sampled(logits, generator) for _ in range(30_000)], minlength=3)
    assert np.abs(counts / 30_000 - [0.2, 0.5, 0.3]).max() < 5 * np.sqrt(0.25 / 30_000)
    mask = np.array([True, False, True])
    masked = np.bincount([sampled(logits, generator, mask) for _ in range(9_000)], minlength=3)
    assert masked[1] == 0
    assert abs(masked[0] / 9_000 - 0.4) < 5 * np.sqrt(0.25 / 9_000)


def test_epsilon_greedy_mixes() -> None:
    mixed = chooser("q", action_choice="epsilon-greedy", epsilon=0.3)
    generator = np.random.default_rng(2)
    counts = np.bincount([mixed(row(0, 1, 0), generator) for _ in range(30_000)], minlength=3)
    assert np.abs(counts / 30_000 - [0.1, 0.8, 0.1]).max() < 5 * np.sqrt(0.25 / 30_000)
    assert chooser("q", action_choice="epsilon-greedy").deterministic


def test_continuous_actions_are_clipped_to_the_box() -> None:
    box = gym.spaces.Box(-1, 1, (2,))
    gaussian = np.array([[0.5, 3.0], [-1.0, -1.0]], np.float32)  # [mean, log deviation]
    assert list(chooser("gaussian", box)(gaussian)) == [0.5, 1.0]
    assert list(chooser("actions", box)(row(-7, 0.25))) == [-1.0, 0.25]
    sampled = chooser("gaussian", box, action_choice="sampled")
    generator = np.random.default_rng(3)
    drawn = np.array([sampled(gaussian, generator) for _ in range(5_000)])
    assert abs(drawn[:, 0].std() - np.exp(-1)) < 0.05
    assert drawn.max() <= 1


def test_scores_and_action_space_must_fit() -> None:
    with pytest.raises(
        PolicyFault, match="'logits' needs a Discrete, MultiDiscrete or MultiBinary"
    ):
        chooser("logits", gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(PolicyFault, match="'gaussian' needs a Box action space"):
        chooser("gaussian")
    with pytest.raises(InvalidInput, match="'sampled' needs probabilities"):
        chooser("q", action_choice="sampled")
    with pytest.raises(InvalidInput, match="needs a random generator"):
        chooser(action_choice="sampled")(row(0, 1, 2))
