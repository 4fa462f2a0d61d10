"""The games that agents are trained on are the games that studies measure, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ale_py = pytest.importorskip("ale_py", reason="Atari needs safemargin[atari]")
pytest.importorskip("cv2", reason="Atari needs safemargin[atari]")

from safemargin.environments.atari import VECTOR_OPTIONS, make_atari  # noqa: E402


def starts_of(env: Any) -> dict[int, int]:
    """The frames at which games begin, and a seed that leads to each."""
    return {env.reset(seed=seed)[1]["episode_frame_number"]: seed for seed in range(60)}


def same_start(game: str, env: Any, number: int, starts: dict[int, int]) -> Any:
    """A vector environment at the start of a game, and `env` brought to the same start.

    The two draw the number of no-ops in different ways, so seeds are tried until they agree.
    """
    for seed in range(50 * number, 50 * number + 50):
        vector = ale_py.AtariVectorEnv(game, num_envs=1, num_threads=1, **VECTOR_OPTIONS)
        observation, info = vector.reset(seed=seed)
        mine = starts.get(int(info["episode_frame_number"][0]))
        if mine is not None:
            assert np.array_equal(env.reset(seed=mine)[0], observation[0])
            return vector
    raise LookupError("no common start")


@pytest.mark.parametrize("game", ["pong", "beam_rider", "breakout", "seaquest", "qbert"])
def test_trainer_and_study_see_the_same(game: str) -> None:
    """Observations, clipped rewards, ends of lives and of games, over several games and lives."""
    env = make_atari(game)
    starts = starts_of(env)
    generator = np.random.default_rng(0)
    steps = lives_lost = number = 0
    while steps < 1500:
        vector = same_start(game, env, number, starts)
        number += 1
        over = False
        while not over and steps < 1500:
            action = int(generator.integers(env.action_space.n))  # type: ignore[attr-defined]
            observation, reward, terminated, truncated, _ = vector.step(np.array([action]))
            mine, my_reward, my_end, my_truncation, _ = env.step(action)
            steps += 1
            assert np.array_equal(mine, observation[0]), steps
            assert my_reward == reward[0]
            assert (my_end, my_truncation) == (terminated[0], truncated[0]), steps
            if my_end and env.get_wrapper_attr("game_goes_on"):
                lives_lost += 1
                again, _ = env.reset()  # the next life of the same game: nothing is between
                assert np.array_equal(again, observation[0])
            else:
                over = my_end
    if game != "pong":  # which has no lives
        assert lives_lost >= 3
