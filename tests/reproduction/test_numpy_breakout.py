"""The NumPy game that engine `jax` is compared with is pgx's, step for step."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers.paths import ROOT

from safemargin.environments.functional.naming import functional_environment

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")
pytest.importorskip("pgx", reason="needs safemargin[pgx]")


def test_the_games_are_the_same_step_for_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from numpy_breakout import NumpyBreakout

    sys.modules.pop("numpy_breakout")
    world, ours = functional_environment("pgx:minatar-breakout"), NumpyBreakout()
    reset, step = jax.jit(world.reset), jax.jit(world.step)
    uniform = jax.jit(jax.random.uniform)
    drawn = np.random.default_rng(5)
    steps = rewards = lost = stuck = 0
    for game in range(12):
        state, seen = reset(jax.random.PRNGKey(game))
        ours.reset(seed=0)
        ours.begin(from_left=bool(np.asarray(seen)[3, 0, 1]))
        over = False
        while not over and steps < 1500:
            np.testing.assert_array_equal(ours._seen(), seen)
            # Under the ball where it will come down, with a slip now and then, to see long games.
            aim = np.sign(ours.ball_x + (1, 1, 1, -1)[ours.direction] - ours.paddle)
            action = int(drawn.integers(3)) if drawn.random() < 0.05 else (0, 2, 1)[int(aim)]
            key = jax.random.PRNGKey(1000 + steps)
            sticks = bool(uniform(key) < 0.1)
            stuck += sticks
            state, seen, reward, terminated, _ = step(state, np.int32(action), key)
            ours.last_action = ours.last_action if sticks else action
            expected = ours.advance(ours.last_action)
            assert (float(reward), bool(terminated)) == expected
            over, steps, rewards = bool(terminated), steps + 1, rewards + float(reward)
        lost += over
    assert lost >= 3
    assert stuck > 10
    assert rewards > 30  # more than one wall, all games together
