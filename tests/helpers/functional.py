"""What tests of functional environments ask of actions and states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def action_at(space: Any, number: int) -> Any:
    """Return an action of a Discrete or Box space, another one for each number."""
    if isinstance(space, gym.spaces.Discrete):
        return np.int32(number % space.n)
    return np.full(space.shape, np.sin(number), np.float32)


def shapes(tree: Any) -> Any:
    """Return shape and type of every leaf, as JAX's compiler sees them."""
    import jax

    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)
