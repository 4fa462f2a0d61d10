"""What an environment of pure functions is: `reset` and `step`, which take all they need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

State = Any
"""A pytree of JAX arrays: all that the environment remembers, its time limit included."""

Key = Any
"""A JAX random key as `uint32[2]`; every step of an episode gets one of its own."""


class FunctionalEnvironment(ABC):
    """An environment of pure functions, which JAX compiles and runs for many states at once.

    `reset` and `step` depend on nothing but their arguments and change nothing: the state is the
    snapshot. `step` never begins a new episode by itself; what it does with a state in which the
    episode has ended does not matter. Shapes and types of the state stay the same.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    name: str = ""
    """What messages call it; by default the name of its class."""
    deterministic: bool | None = None
    """Whether `step` makes no use of its key; None: find out."""

    @abstractmethod
    def reset(self, key: Key) -> tuple[State, Any]:
        """Begin an episode; return its first state and observation."""

    @abstractmethod
    def step(self, state: State, action: Any, key: Key) -> tuple[State, Any, Any, Any, Any]:
        """Take one action; return (state, observation, reward, terminated, truncated).

        The action is an int32 scalar of a Discrete space or an array like those of a Box; reward,
        terminated and truncated are scalars.
        """

    def legal(self, state: State) -> Any:
        """Return which actions are legal, as booleans [actions]; None: all of them, always."""
        return None

    def render(self, state: State) -> npt.NDArray[np.uint8]:
        """Return a picture [height, width, 3] of a state; need not be compilable."""
        raise NotImplementedError

    @property
    def draws(self) -> bool:
        """Whether `render` draws pictures."""
        return type(self).render is not FunctionalEnvironment.render
