"""What can be told from the program of a functional environment without running it."""

from __future__ import annotations

from typing import Any

from safemargin.core.jax_library import load_jax
from safemargin.environments.functional.protocol import FunctionalEnvironment


def uses_key(functional: FunctionalEnvironment) -> bool:
    """Whether anything that `step` returns depends on its key, as far as its program says."""
    jax = load_jax(f"environment {functional.name!r}")
    key = jax.ShapeDtypeStruct((2,), "uint32")
    state, _ = jax.eval_shape(functional.reset, key)
    program, _ = jax.make_jaxpr(functional.step, return_shape=True)(
        state, sample_action(functional), key
    )
    needed = _needed(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return needed[-1]


def sample_action(functional: FunctionalEnvironment) -> Any:
    """Return some action of the space."""
    import gymnasium as gym
    import numpy as np

    space = functional.action_space
    if isinstance(space, gym.spaces.Discrete):
        return np.int32(space.start)
    return np.zeros(space.shape or (), space.dtype)


def _needed(program: Any, outputs: list[bool]) -> list[bool]:
    """Return which inputs of a program these outputs depend on."""
    from jax.interpreters import partial_eval

    return list(partial_eval.dce_jaxpr(program, outputs)[1])
