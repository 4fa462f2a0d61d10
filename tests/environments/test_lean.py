"""The lean Atari path against the Gymnasium wrappers that it stands for."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from safemargin.environments import EnvironmentSpec, SnapshotSimulator, make_simulator
from safemargin.environments.lean import AtariSimulator, atari_stack
from safemargin.errors import EnvironmentFault, InvalidInput

GAMES = ["pong", "beam_rider", "breakout", "qbert", "tetris"]


def atari(game: str, **options: Any) -> gym.Env[Any, Any]:
    return EnvironmentSpec.parse(f"atari:{game}", options).make()


def lean(game: str, **options: Any) -> AtariSimulator:
    simulator = make_simulator(atari(game, **options))
    assert isinstance(simulator, AtariSimulator)
    return simulator


def begin(simulator: Any, seed: int) -> Any:
    return simulator.next_life() if simulator.game_goes_on else simulator.reset(seed)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("options", [{}, {"one_life": False, "clip_rewards": False}], ids=str)
def test_the_lean_path_plays_the_very_game_of_the_wrappers(
    game: str, options: dict[str, Any]
) -> None:
    fast, slow = lean(game, **options), SnapshotSimulator(atari(game, **options))
    generator = np.random.default_rng(0)
    begun = lives = 0
    fast.ended = slow.ended = True
    for _ in range(600 if options else 1200):
        if slow.ended:
            assert fast.game_goes_on == slow.game_goes_on
            lives += slow.game_goes_on
            begun += 1
            assert np.array_equal(begin(fast, begun), begin(slow, begun))
        action = int(generator.integers(fast.env.action_space.n))  # type: ignore[attr-defined]
        one, other = fast.step(action), slow.step(action)
        assert np.array_equal(one.observation, other.observation)
        assert one.observation.dtype == other.observation.dtype
        assert (one.reward, one.terminated, one.truncated) == (
            other.reward,
            other.terminated,
            other.truncated,
        )
    assert begun > 1 or game == "tetris" or options
    assert lives > 0 or game in ("pong", "tetris") or options


@pytest.mark.parametrize("game", GAMES)
def test_a_snapshot_continues_in_another_emulator(game: str) -> None:
    first, second = lean(game), lean(game)
    generator = np.random.default_rng(1)
    for trial in range(6):
        first.reset(trial)
        second.reset(trial + 100)
        for simulator in (first, second):
            for action in generator.integers(3, size=generator.integers(1, 80)):
                if not simulator.ended:
                    simulator.step(int(action))
        if first.ended:
            continue
        saved = first.save()
        second.restore(saved)
        assert first.digest() == second.digest()
        for action in generator.integers(3, size=60):
            one, other = first.step(int(action)), second.step(int(action))
            assert np.array_equal(one.observation, other.observation)
            assert (one.reward, one.terminated) == (other.reward, other.terminated)
            assert first.digest() == second.digest()
            if first.ended:
                break
        first.restore(saved)
        assert np.array_equal(first.observation, saved.observation)


def test_steps_that_nobody_watches_lead_to_the_same_observation() -> None:
    watched, unwatched = lean("beam_rider"), lean("beam_rider")
    watched.reset(3)
    unwatched.reset(3)
    for position in range(40):
        action = position % 9
        watched.step(action)
        unwatched.step(action, watched=40 - position <= unwatched.looks_back)
    assert np.array_equal(watched.observation, unwatched.observation)
    assert watched.digest() == unwatched.digest()


def test_the_digest_tells_states_apart() -> None:
    simulator = lean("pong")
    simulator.reset(0)
    seen = set()
    for position in range(60):
        simulator.step(position % 6)
        seen.add(simulator.digest())
    assert len(seen) == 60


def test_frames_belong_to_the_digest() -> None:
    one, other = lean("pong"), lean("pong")
    for simulator in (one, other):
        simulator.reset(0)
        for _ in range(8):
            simulator.step(0)
    frames = list(other._frames)
    frames[0] = np.zeros_like(frames[0])
    other._frames, other._marks = tuple(frames), (None,) * 4
    assert one.digest() != other.digest()


def test_only_plain_stacks_are_taken_over() -> None:
    assert atari_stack(atari("pong")) is not None
    assert atari_stack(atari("pong", sticky=0.25)) is None
    assert atari_stack(TimeLimit(atari("pong"), 100)) is None
    assert atari_stack(gym.make("CartPole-v1")) is None
    assert atari_stack(gym.make("ALE/Pong-v5", frameskip=1)) is None
    users = AtariPreprocessing(
        gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0),
        terminal_on_life_loss=True,
    )
    stack = atari_stack(FrameStackObservation(users, 4))
    assert stack is not None
    assert (stack.ends_with_life, stack.one_life) == (True, False)
    assert atari_stack(FrameStackObservation(FrameStackObservation(users, 4), 2)) is None


def test_a_users_own_plain_stack_is_the_same_game() -> None:
    def make() -> gym.Env[Any, Any]:
        base = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
        return FrameStackObservation(AtariPreprocessing(base, terminal_on_life_loss=True), 4)

    fast, slow = make_simulator(make()), SnapshotSimulator(make())
    assert isinstance(fast, AtariSimulator)
    generator = np.random.default_rng(0)
    games = 0
    for _ in range(600):
        if slow.ended:
            games += 1
            assert np.array_equal(fast.reset(games), slow.reset(games))
        action = int(generator.integers(4))
        one, other = fast.step(action), slow.step(action)
        assert np.array_equal(one.observation, other.observation)
        assert (one.reward, one.terminated) == (other.reward, other.terminated)
    assert games > 2


def test_what_cannot_be_done_is_refused() -> None:
    simulator = lean("pong")
    simulator.reset(0)
    with pytest.raises(EnvironmentFault, match="step 1 raised"):
        simulator.step(17)
    with pytest.raises(InvalidInput, match="no further life"):
        simulator.next_life()
    saved = simulator.save()
    with pytest.raises(InvalidInput, match="same game"):
        lean("breakout").restore(saved)
