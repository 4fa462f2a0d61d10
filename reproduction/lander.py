"""LunarLander whose engine noise is drawn when a game begins, so that a game can be played again.

    safemargin collect reproduction/lander.py:make lander.onnx -o lander --n 1

The noise has the same distribution as in LunarLander-v3. It only belongs to the start of a game, as
the landscape does. What another action would have brought is then one future for each action, as in
the Atari games, and not an average over chances.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

NAME = "LunarLander-v3"
LONGEST = 1000
"""Steps after which a game is cut off."""


class DrawnAhead(gym.Wrapper[Any, Any, Any, Any]):
    """Draws what the engines of a whole game will do at random."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a game, and draw its noise from the generator that drew the landscape."""
        game: Any = self.env.unwrapped
        if isinstance(game._np_random, _Drawn):
            game._np_random = game._np_random.generator
        begun = self.env.reset(**options)
        game._np_random = _Drawn(game.np_random)
        return begun


class _Drawn:
    """Gives in order what was drawn; all that LunarLander asks of its generator in a step."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self._noise = generator.uniform(-1.0, 1.0, 2 * LONGEST).tolist()
        self._given = 0

    def uniform(self, low: float, high: float) -> float:
        """Return the next number."""
        if (low, high) != (-1.0, 1.0):
            raise ValueError(f"the engines draw from -1 to 1, got {low} to {high}")
        self._given += 1
        return float(self._noise[self._given - 1])


def make() -> gym.Env[Any, Any]:
    """Return the environment."""
    return DrawnAhead(gym.make(NAME, max_episode_steps=LONGEST))
