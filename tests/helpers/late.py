"""Worlds that show only late, or only after many mistakes, that the doctor was wrong about them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.policies import load_policy

MISSTEP = 1.5
"""What a wrong action costs at once."""
FINE = 4.0
"""What a draw costs in one of two cases, or an alarm at every step."""


class Late(gym.Env[Any, Any]):
    """Pays 1 a step; from `after` on a coin is flipped once `row` actions in a row were wrong.

    Action 0 is right. With `row` 0, the coin is flipped at every step from `after` on.
    """

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)

    def __init__(self, *, after: int = 0, row: int = 1, steps: int = 40, actions: int = 2) -> None:
        self.action_space = gym.spaces.Discrete(actions)
        self.after, self.row, self.steps = after, row, steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = self.wrong = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.wrong = self.wrong + 1 if action else 0
        reward = 1.0 - MISSTEP * bool(action)
        if self.t >= self.after and self.wrong >= self.row:
            reward -= FINE * float(self.np_random.integers(2))
        self.t += 1
        return np.full(1, self.t, np.float32), reward, self.t >= self.steps, False, {}

    def truth(self, step: int, n: int, settings: Any) -> float:
        """c(step, n) of the policy that is always right, from the law of the row's length."""
        wrong = 1 - 1 / int(self.action_space.n)  # type: ignore[attr-defined]
        chance = np.zeros(self.row + 1)  # [length of the row], the last being "or more"
        chance[0] = 1.0
        loss = 0.0
        for k in range(min(n, self.steps - step, settings.horizon)):
            longer = np.append(0.0, chance[:-1] * wrong)
            longer[-1] += chance[-1] * wrong
            longer[0] += 1 - wrong
            chance = longer
            # With row 0 the coin is flipped with and without mistakes.
            flips = chance[-1] if self.row and step + k >= self.after else 0.0
            loss += settings.gamma**k * (wrong * MISSTEP + flips * FINE / 2)
        return loss


ALARM = [False]


class Alarmed(gym.Env[Any, Any]):
    """Two mistakes in a row from `after` on raise an alarm, which a module's global holds.

    It costs a fine at every later step, and only a reset ends it.
    """

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *, after: int = 0, steps: int = 40, loud: bool = True) -> None:
        """Where it is not `loud`, the fine is only for further mistakes."""
        self.after, self.steps, self.loud = after, steps, loud

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = self.wrong = 0
        ALARM[0] = False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = 1.0 - FINE * (ALARM[0] and (self.loud or bool(action)))
        self.wrong = self.wrong + 1 if action else 0
        ALARM[0] |= self.wrong == 2 and self.t >= self.after
        self.t += 1
        return np.full(1, self.t, np.float32), reward, self.t >= self.steps, False, {}

    def truth(self, step: int, n: int, settings: Any) -> float:
        """c(step, n) of the policy that is always right, from the law of row and alarm."""
        chance = np.zeros((n + 2, 2))  # [length of the row, whether the alarm is raised]
        chance[0, 0] = 1.0
        loss = 0.0
        for k in range(min(self.steps - step, settings.horizon)):
            wrong = 0.5 if k < n else 0.0
            loss += settings.gamma**k * FINE * chance[:, 1].sum() * (1.0 if self.loud else wrong)
            longer = np.zeros_like(chance)
            longer[1:] = chance[:-1] * wrong
            longer[0] = chance.sum(axis=0) * (1 - wrong)
            if step + k >= self.after:
                longer[2] = 0.0, longer[2].sum()
            chance = longer
        return loss


def right(actions: int = 2) -> Any:
    """A policy that always takes action 0."""

    def scores(observations: Any) -> Any:
        return np.tile(np.eye(actions)[0], (len(observations), 1))

    return load_policy(scores, kind="logits")


def make_late(**options: Any) -> Any:
    """A function that makes such a world."""
    return lambda: Late(**options)


def make_alarmed(**options: Any) -> Any:
    """A function that makes such a world."""
    return lambda: Alarmed(**options)
