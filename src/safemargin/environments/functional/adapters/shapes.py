"""Spaces, keys and numbers of JAX libraries, turned into those of functional environments."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.jax_library import load_jax
from safemargin.environments.functional.protocol import Key
from safemargin.errors import InvalidInput

KEY_NAMES = ("key", "rng", "rng_key", "_rng_key")
"""What libraries call a random key that they keep in their state."""


def space_of(space: Any, environment: str) -> gym.Space[Any]:
    """Return the Gymnasium space that stands for a library's own."""
    if hasattr(space, "n"):
        return gym.spaces.Discrete(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        kind = number(np.dtype(space.dtype))
        shape = tuple(int(size) for size in space.shape)
        low, high = (
            np.broadcast_to(np.asarray(bound), shape).astype(kind)
            for bound in (space.low, space.high)
        )
        return gym.spaces.Box(low, high, shape, kind)
    raise InvalidInput(
        f"environment {environment!r}: its space {type(space).__name__} is neither a number of "
        "actions nor an array: write an environment around it, and name it as 'jax:file.py:make'"
    )


def number(kind: Any) -> Any:
    """Return the type that observations get: networks and files of networks take no booleans."""
    return np.uint8 if kind == np.bool_ else kind


def like(template: Any, tree: Any) -> Any:
    """Give arrays the shapes and types that they had after `reset`.

    Libraries return Python numbers, or arrays [1] for scalars; a compiled loop takes neither.
    """
    jax = load_jax("an environment in JAX")

    def one(wanted: Any, given: Any) -> Any:
        return jax.numpy.asarray(given, wanted.dtype).reshape(wanted.shape)

    return jax.tree.map(one, template, tree)


def shapes_of(function: Any, *arguments: Any) -> Any:
    """Return the shapes and types of what a function of keys and states returns."""
    jax = load_jax("an environment in JAX")
    return jax.eval_shape(function, *arguments)


def some_key() -> Any:
    """Return a key to find out shapes with."""
    return load_jax("an environment in JAX").random.PRNGKey(0)


def rekeyed(state: Any, key: Key) -> tuple[Any, int]:
    """Replace the random keys that a state holds by ones that follow from this key; count them.

    So chance comes from the key of the step, as everywhere, and trials can draw their own.
    """
    jax = load_jax("an environment in JAX")
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves, replaced = [], 0
    for path, leaf in paths:
        name = getattr(path[-1], "name", getattr(path[-1], "key", "")) if path else ""
        if name in KEY_NAMES and leaf.shape == (2,) and leaf.dtype == np.uint32:
            leaf = jax.random.fold_in(key, replaced)
            replaced += 1
        leaves.append(leaf)
    return jax.tree.unflatten(structure, leaves), replaced


def settings_and_rest(
    record: Any, arguments: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide arguments into fields of a record of settings and the others."""
    names = {field.name for field in dataclasses.fields(record)}
    return (
        {name: value for name, value in arguments.items() if name in names},
        {name: value for name, value in arguments.items() if name not in names},
    )
