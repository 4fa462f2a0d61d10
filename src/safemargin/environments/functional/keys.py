"""The random keys of an episode: one for its start, and one for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


def key_of_seed(seed: int) -> Words:
    """Return the key of an episode whose environment is reset with this seed, [2]."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32)


def key_of_stream(generator: np.random.Generator) -> Words:
    """Return the key of a trial, from its stream, [2]."""
    number = generator.bit_generator.random_raw()
    return np.array([number & 0xFFFFFFFF, number >> 32], dtype=np.uint32)


def key_of_start(jax: Any, key: Any) -> Any:
    """Return the key that `reset` gets."""
    return jax.random.fold_in(key, 0)


def key_of_step(jax: Any, key: Any, step: Any) -> Any:
    """Return the key that `step` gets after this many steps of the episode."""
    return jax.random.fold_in(key, step + 1)


class StepKeys:
    """The random generator of an environment whose steps draw numbers."""

    def __init__(self) -> None:
        self.key = np.zeros(2, dtype=np.uint32)
        self.drawn = 0
        """The number of steps that have drawn since the reset."""

    def save(self) -> list[Any]:
        """Return its state."""
        return [self.key.copy(), self.drawn]

    def restore(self, state: list[Any]) -> None:
        """Put a state back."""
        self.key, self.drawn = np.array(state[0]), int(state[1])

    def reseed(self, generator: np.random.Generator) -> None:
        """Go on with other numbers."""
        self.key = key_of_stream(generator)
