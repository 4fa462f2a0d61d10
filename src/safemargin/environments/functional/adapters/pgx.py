"""Games of pgx: MinAtar and the other games of one player."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.environments.functional.adapters.libraries import library
from safemargin.environments.functional.adapters.shapes import number, shapes_of, some_key
from safemargin.environments.functional.protocol import FunctionalEnvironment, Key, State
from safemargin.errors import InvalidInput, did_you_mean, errors_as

CELL = 16
"""The width of a cell of a MinAtar game in its picture, in pixels."""

COLOURS = (
    *((90, 200, 250), (255, 255, 255), (255, 149, 0), (255, 59, 48), (76, 217, 100)),
    *((175, 82, 222), (255, 204, 0), (88, 86, 214), (162, 132, 94), (142, 142, 147)),
)
"""One for each channel; where several are set, the first is seen."""


class PgxGame(FunctionalEnvironment):
    """A game of one player; where some actions can be illegal, `legal` says which are not."""

    def __init__(self, game: Any, name: str) -> None:
        self.game = game
        self.name = name
        blank = shapes_of(game.init, some_key())
        seen = blank.observation
        low, high = (0, 1) if seen.dtype == np.bool_ else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, seen.shape, number(seen.dtype))
        self.action_space = gym.spaces.Discrete(int(blank.legal_action_mask.shape[0]))

    def reset(self, key: Key) -> tuple[State, Any]:
        state = self.game.init(key)
        return state, self._observation(state)

    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        after = self.game.step(state, action, key)
        ended = after.terminated, after.truncated
        return after, self._observation(after), after.rewards[0], *ended

    def _observation(self, state: State) -> Any:
        return state.observation.astype(self.observation_space.dtype)

    def legal(self, state: State) -> Any:
        return state.legal_action_mask


class MinAtar(PgxGame):
    """A MinAtar game, in which all actions are always legal."""

    def legal(self, state: State) -> Any:
        return None

    def render(self, state: State) -> npt.NDArray[np.uint8]:
        """Paint every cell in the colour of the first channel that is set there."""
        cells = np.asarray(state.observation)  # [10, 10, channels]
        picture = np.full((*cells.shape[:2], 3), 20, np.uint8)
        for channel in reversed(range(cells.shape[2])):
            picture[cells[..., channel] > 0] = COLOURS[channel % len(COLOURS)]
        return picture.repeat(CELL, axis=0).repeat(CELL, axis=1)


def make(name: str, **arguments: Any) -> PgxGame:
    """Make a game by the name that pgx gives it; the arguments are those of its class."""
    text = f"jax:pgx:{name}"
    pgx = library("pgx", "pgx", text)
    if name not in pgx.available_envs():
        raise InvalidInput(
            f"environment {text!r}: pgx has no such game; "
            f"{did_you_mean(name, pgx.available_envs())}"
        )
    game: Any = pgx.make(name)
    if game.num_players > 1:
        raise InvalidInput(
            f"environment {text!r} is a game of {game.num_players} players, and margins are about "
            "one agent: write an environment in which the others are part of the world, and name "
            "it as 'jax:file.py:make'"
        )
    if arguments:
        with errors_as(InvalidInput, f"environment {text!r}: {arguments} do not fit:"):
            game = type(game)(**arguments)
    made = (MinAtar if name.startswith("minatar-") else PgxGame)(game, name)
    if getattr(game, "sticky_action_prob", 0):
        made.deterministic = False  # it repeats the last action at random
    elif name == "minatar-breakout":
        made.deterministic = True  # nothing else in it is drawn
    return made
