"""Craftax and Craftax-Classic, with symbols or pixels as observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.environments.functional.adapters.gymnax import GymnaxWorld
from safemargin.environments.functional.adapters.libraries import library
from safemargin.environments.functional.adapters.shapes import settings_and_rest
from safemargin.environments.functional.protocol import Key, State
from safemargin.errors import InvalidInput, did_you_mean, errors_as

NAMES = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
BLOCK = 16
"""The width of a block in pictures, in pixels."""


class CraftaxWorld(GymnaxWorld):
    """Its `step_env` is that of gymnax, but counts the time limit among the ends."""

    deterministic = False
    _draw: Any = None
    """What draws; made when first asked for, because it loads many pictures."""

    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        *rest, ended, truncated = super().step(state, action, key)
        after, observation, reward = rest
        return after, observation, reward, ended & ~truncated, truncated

    def truncated(self, state: State) -> Any:
        return state.timestep >= self.params.max_timesteps

    def render(self, state: State) -> npt.NDArray[np.uint8]:
        """Draw what the player sees, as Craftax does."""
        if self._draw is None:
            module = f"craftax.craftax{'_classic' if 'Classic' in self.name else ''}.renderer"
            renderer = library("craftax", module, f"jax:craftax:{self.name}")
            self._draw = renderer.make_craftax_pixel_renderer(BLOCK)
        picture: npt.NDArray[np.uint8] = np.clip(self._draw(state), 0, 255).astype(np.uint8)
        return picture


def make(name: str, **arguments: Any) -> CraftaxWorld:
    """Make a world by its name; the arguments are its parameters."""
    text = f"jax:craftax:{name}"
    plain = name.replace("-AutoReset", "")
    if plain not in NAMES:
        raise InvalidInput(
            f"environment {text!r}: Craftax has no such world; {did_you_mean(name, NAMES)}"
        )
    if plain != name:
        raise InvalidInput(
            f"environment {text!r} resets itself, which would hide the end of an episode; name it "
            f"'jax:craftax:{plain}'"
        )
    craftax = library("craftax", "craftax.craftax_env", text)
    world = craftax.make_craftax_env_from_name(name, auto_reset=False)
    params = world.default_params
    settings, rest = settings_and_rest(params, arguments)
    if rest:
        raise InvalidInput(
            f"environment {text!r}: {', '.join(rest)}: unknown; its parameters are "
            f"{', '.join(vars(params))}"
        )
    with errors_as(InvalidInput, f"environment {text!r}: {arguments} do not fit:"):
        params = params.replace(**settings)
    return CraftaxWorld(world, params, text)
