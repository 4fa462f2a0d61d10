"""The compiled functions of a functional environment, for everything that steps one by one."""

from __future__ import annotations

from typing import Any

from safemargin.core.jax_library import SharedProgram, load_jax
from safemargin.environments.functional.keys import key_of_start, key_of_step
from safemargin.environments.functional.protocol import FunctionalEnvironment


class Programs:
    """Compiles `reset`, `step` and `legal` of an environment."""

    def __init__(self, functional: FunctionalEnvironment) -> None:
        jax = load_jax(f"environment {functional.name!r}")

        def reset(key: Any) -> Any:
            return functional.reset(key_of_start(jax, key))

        def step(state: Any, action: Any, key: Any, steps: Any) -> Any:
            return functional.step(state, action, key_of_step(jax, key, steps))

        self.reset = SharedProgram(reset)
        """The key of an episode → its first state and observation."""
        self.step = SharedProgram(step)
        """State, action, the key of the episode and the steps so far → what `step` returns."""
        self.legal = SharedProgram(functional.legal)
        """A state → which actions are legal; None: all of them."""
