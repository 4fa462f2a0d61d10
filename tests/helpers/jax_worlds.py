"""Small environments and policies in JAX, named 'jax:tests/helpers/jax_worlds.py:NAME'."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from safemargin.environments.functional import FunctionalEnvironment
from safemargin.policies.jax import JaxPolicy

LENGTH = 40


class Ledge(FunctionalEnvironment):
    """Action 0 stays on the ledge, which pays 1 a step; action 1 falls, after which nothing pays.

    Wind blows the agent down with probability `wind` in each step. Episodes have 30 to 40 steps.
    """

    observation_space = gym.spaces.Box(-1.0, LENGTH, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wind: float = 0.0) -> None:
        self.wind = wind

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = {"up": jnp.bool_(True), "left": jax.random.randint(key, (), 30, LENGTH + 1)}
        return state, self._seen(state)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        up = state["up"] & (action == 0)
        if self.wind:
            up &= jax.random.uniform(key) >= self.wind
        state = {"up": up, "left": state["left"] - 1}
        return state, self._seen(state), self.pay(state), state["left"] <= 0, False

    def pay(self, state: Any) -> Any:
        return jnp.where(state["up"], 1.0, 0.0)

    def _seen(self, state: Any) -> Any:
        left = state["left"].astype("float32")
        return jnp.stack([state["up"].astype("float32"), left / 7, jnp.sin(left)])


class Unpaid(Ledge):
    """Pays NaN for the last steps."""

    def pay(self, state: Any) -> Any:
        return jnp.where(state["left"] < 5, jnp.nan, super().pay(state))


class Again(Ledge):
    """Begins the next episode by itself."""

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        state, _, reward, over, late = super().step(state, action, key)
        fresh, _ = self.reset(key)
        state = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, state)
        return state, self._seen(state), reward, over, late


class Counting(Ledge):
    """Pays more at every call."""

    calls = 0

    def pay(self, state: Any) -> Any:
        self.calls += 1
        return super().pay(state) + self.calls


class Calling(Ledge):
    """Asks something outside JAX what to pay."""

    calls = 0

    def pay(self, state: Any) -> Any:
        def ask(state: Any) -> Any:
            self.calls += 1
            return np.float32(self.calls)

        return jax.pure_callback(ask, jax.ShapeDtypeStruct((), np.float32), state)


class Bragging(Ledge):
    """Calls itself deterministic in the wind."""

    deterministic = True

    def __init__(self) -> None:
        super().__init__(wind=0.5)


class Choosy(Ledge):
    """Allows falling in every other step only."""

    def legal(self, state: Any) -> Any:
        return jnp.stack([jnp.bool_(True), state["left"] % 2 == 0])


def stay_or_fall(params: Any, observations: Any) -> Any:
    return observations @ params


def careful() -> JaxPolicy:
    """Prefers to stay, more or less so."""
    params = np.array([[2.0, -1.0], [0.1, -0.1], [0.3, -0.3]], np.float32)
    return JaxPolicy(stay_or_fall, params, kind="logits")


def swing(params: Any, observations: Any, memory: Any) -> Any:
    (mood,) = memory
    mood = jnp.tanh(0.7 * mood + observations @ params)
    return mood, (mood,)


def moody() -> JaxPolicy:
    """Remembers what it preferred."""
    params = np.array([[2.0, -1.0], [0.1, -0.1], [0.3, -0.3]], np.float32)
    return JaxPolicy(swing, params, kind="logits", initial=(np.zeros(2, np.float32),))
