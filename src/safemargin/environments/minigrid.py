"""MiniGrid's worlds: 'minigrid:MiniGrid-DoorKey-8x8-v0'.

Their observations are a Dict with the mission as text; most agents were trained behind one of the
library's own wrappers, which `observations` names.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from safemargin.environments.simulator import Env
from safemargin.errors import InvalidInput, did_you_mean

WRAPPERS = {
    "flat": "FlatObsWrapper",
    "image": "ImgObsWrapper",
    "one-hot": "OneHotPartialObsWrapper",
    "full": "FullyObsWrapper",
    "pixels": "RGBImgPartialObsWrapper",
    "all-pixels": "RGBImgObsWrapper",
}
"""The wrappers by the name of what an agent then sees."""

_STILL_A_DICT = ("one-hot", "full", "pixels", "all-pixels")
"""Of these, an agent gets the image alone."""


def make_minigrid(rest: str, *, observations: str = "dict", **arguments: Any) -> Env:
    """Make the world that 'minigrid:REST' names, seen through one of the library's wrappers."""
    try:
        import minigrid
        from minigrid import wrappers
    except ImportError as error:
        raise InvalidInput(
            f"environment 'minigrid:{rest}' needs MiniGrid: pip install minigrid ({error})"
        ) from error
    if observations not in ("dict", *WRAPPERS):
        known = did_you_mean(str(observations), ["dict", *WRAPPERS])
        raise InvalidInput(
            f"environment 'minigrid:{rest}': observations={observations!r} is unknown; {known}"
        )
    ids = [key for key in gym.registry if key.startswith(("MiniGrid-", "BabyAI-"))]
    if rest not in ids:
        raise InvalidInput(
            f"environment 'minigrid:{rest}' is unknown to MiniGrid {minigrid.__version__}; "
            + did_you_mean(rest, ids)
        )
    world = gym.make(rest, **arguments)
    if observations == "dict":
        return world
    env: Env = getattr(wrappers, WRAPPERS[observations])(world)
    if observations in _STILL_A_DICT:
        env = wrappers.ImgObsWrapper(env)
    return env
