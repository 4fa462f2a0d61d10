"""Atari games rewritten in JAX by JAXtari, whose pictures have to be downloaded first."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.jax_library import load_jax
from safemargin.environments.functional.adapters.libraries import library
from safemargin.environments.functional.adapters.shapes import (
    like,
    rekeyed,
    shapes_of,
    some_key,
    space_of,
)
from safemargin.environments.functional.protocol import FunctionalEnvironment, Key, State
from safemargin.errors import InvalidInput, did_you_mean, errors_as

FRAMES = 4
"""How many frames an action lasts, and how many observations are stacked."""


class JaxtariGame(FunctionalEnvironment):
    """A game seen as its objects: where each of them is, float32 [4, numbers].

    This plays like JAXtari's ObjectCentricWrapper, which cannot be used: it begins a new game by
    itself. JAXtari keeps a random key in the state; every step of ours gives it another one.
    """

    def __init__(self, game: Any, text: str) -> None:
        self.game = game  # an AtariWrapper
        self.name = text.rpartition(":")[2]
        self.action_space = space_of(game.action_space(), text)
        seen, self._blank = shapes_of(game.reset, some_key())
        self._width = shapes_of(self._flat, seen).shape[0]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (FRAMES, self._width), np.float32)

    def reset(self, key: Key) -> tuple[State, Any]:
        seen, state = self.game.reset(key)
        stack = load_jax("JAXtari").numpy.stack([self._flat(seen)] * FRAMES)
        return (like(self._blank, state), stack), stack

    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        jax = load_jax("JAXtari")
        game, stack = state

        def frame(game: Any, _: Any) -> tuple[Any, Any]:
            seen, after, reward, terminated, truncated, _ = self.game.step(game, action)
            given = jax.numpy.float32(reward), terminated, truncated
            return like(self._blank, after), (self._flat(seen), *given)

        game, played = jax.lax.scan(frame, rekeyed(game, key)[0], None, length=FRAMES)
        seen, rewards, terminated, truncated = played
        stack = jax.numpy.concatenate([stack[1:], seen[-1:]])
        reward = jax.numpy.sign(rewards.sum())
        return (game, stack), stack, reward, terminated.any(), truncated.any()

    def render(self, state: State) -> npt.NDArray[np.uint8]:
        """Draw the screen of the game."""
        return np.asarray(self.game.render(state[0].env_state), np.uint8)

    def _flat(self, seen: Any) -> Any:
        jax = load_jax("JAXtari")
        return jax.numpy.concatenate(
            [jax.numpy.ravel(part).astype(np.float32) for part in jax.tree.leaves(seen)]
        )


def make(name: str, **arguments: Any) -> JaxtariGame:
    """Make a game by its name; `mods` are JAXtari's, other arguments those of its AtariWrapper.

    There are no sticky actions unless asked for.
    """
    text = f"jax:jaxtari:{name}"
    jaxtari = library("jaxtari", "jaxtari", text)
    wrappers = library("jaxtari", "jaxtari.wrappers", text)
    if name not in jaxtari.list_available_games():
        raise InvalidInput(
            f"environment {text!r}: JAXtari has no such game; "
            f"{did_you_mean(name, jaxtari.list_available_games())}"
        )
    if not jaxtari.ownership_or_alt_markers_present():
        raise InvalidInput(
            f"environment {text!r}: JAXtari's sprites are not installed; they are a download of "
            "their own: python -m jaxtari.install_sprites"
        )
    options = {"sticky_actions": 0.0, **arguments}
    with errors_as(InvalidInput, f"environment {text!r} could not be made with {arguments}:"):
        game = jaxtari.make(name, mods=options.pop("mods", None))
        return JaxtariGame(wrappers.AtariWrapper(game, **options), text)
