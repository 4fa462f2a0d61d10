"""Worlds of Box2D that keep their physics between episodes, made to begin each one anew."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

KEEPING = ("gymnasium.envs.box2d.bipedal_walker", "gymnasium.envs.box2d.car_racing")
"""Modules whose environments reuse one Box2D world for all episodes."""


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a Gymnasium environment a new Box2D world before each episode.

    The order in which Box2D solves contacts depends on what its world went through, so that the
    same seed and the same actions give another episode in a world that was used before. In a new
    one, every episode is as the first one of a new environment (LunarLander does this itself).
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Make the world anew, and begin an episode."""
        base: Any = self.env.unwrapped
        base._destroy()  # through the world that the bodies are in
        base.world = type(base.world)(gravity=tuple(base.world.gravity))
        return self.env.reset(**options)


def with_fresh_world(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Wrap an environment that reuses its Box2D world, unless that was done already."""
    if type(env.unwrapped).__module__ not in KEEPING or isinstance(env, FreshWorld):
        return env
    return FreshWorld(env)
