"""MinAtar breakout written in plain NumPy, as one would for an ordinary engine."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

SIZE = 10
STICKY = 0.1
"""The chance that the last action is repeated instead."""


class NumpyBreakout(gym.Env[Any, Any]):
    """The game of `jax:pgx:minatar-breakout`: a paddle, a ball and three rows of bricks."""

    observation_space = gym.spaces.Box(0, 1, (SIZE, SIZE, 4), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        from_left = int(self.np_random.integers(2)) == 0
        self.begin(from_left=from_left)
        return self._seen(), {}

    def begin(self, *, from_left: bool) -> None:
        """Put everything where a game begins."""
        self.ball_x, self.direction = (0, 2) if from_left else (9, 3)
        self.ball_y, self.paddle, self.strike, self.last_action = 3, 4, False, 0
        self.last_x, self.last_y = self.ball_x, self.ball_y
        self.bricks = np.zeros((SIZE, SIZE), bool)
        self.bricks[1:4] = True

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if STICKY and self.np_random.random() < STICKY:
            action = self.last_action
        self.last_action = action
        reward, terminated = self.advance(action)
        return self._seen(), reward, terminated, False, {}

    def advance(self, action: int) -> tuple[float, bool]:
        """Move everything by one step."""
        if action == 1:
            self.paddle = max(0, self.paddle - 1)
        elif action == 2:
            self.paddle = min(SIZE - 1, self.paddle + 1)
        self.last_x, self.last_y = self.ball_x, self.ball_y
        x = self.ball_x + (1 if self.direction in (1, 2) else -1)
        y = self.ball_y + (1 if self.direction in (2, 3) else -1)
        reward, terminated, strike = 0.0, False, False
        if x < 0 or x > SIZE - 1:
            x = min(max(x, 0), SIZE - 1)
            self.direction = (1, 0, 3, 2)[self.direction]
        if y < 0:
            y = 0
            self.direction = (3, 2, 1, 0)[self.direction]
        elif self.bricks[y, x]:
            strike = True
            if not self.strike:
                reward, self.strike = 1.0, True
                self.bricks[y, x] = False
                y = self.last_y
                self.direction = (3, 2, 1, 0)[self.direction]
        elif y == SIZE - 1:
            if not self.bricks.any():
                self.bricks[1:4] = True
            if self.ball_x == self.paddle:
                self.direction = (3, 2, 1, 0)[self.direction]
                y = self.last_y
            elif x == self.paddle:
                self.direction = (2, 3, 0, 1)[self.direction]
                y = self.last_y
            else:
                terminated = True
        if not strike:
            self.strike = False
        self.ball_x, self.ball_y = x, y
        return reward, terminated

    def _seen(self) -> Any:
        seen = np.zeros((SIZE, SIZE, 4), np.uint8)
        seen[SIZE - 1, self.paddle, 0] = 1
        seen[self.ball_y, self.ball_x, 1] = 1
        seen[self.last_y, self.last_x, 2] = 1
        seen[self.bricks, 3] = 1
        return seen


def make() -> NumpyBreakout:
    """Make the game."""
    return NumpyBreakout()
