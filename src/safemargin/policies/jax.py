"""Policies written in JAX: a pure function of parameters and observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from safemargin.core.jax_library import SharedProgram, load_jax, tile
from safemargin.errors import PolicyFault, errors_as
from safemargin.policies.base import Features, Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy
from safemargin.policies.identity import function_identity


class JaxPolicy(BatchedPolicy):
    """Takes scores from `function(params, observations)`, always for a whole tile at once.

    With `initial`, the arrays of the memory at the start of an episode (without a batch), it is
    `function(params, observations, memory)`, which returns (scores, memory). `hidden`, of the same
    arguments, returns the last hidden layer [batch, width]. All of them take batches and must be
    pure. The identity is a best effort (`function_identity`); pass `identity` to replace it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        params: Any = None,
        *,
        kind: ScoreKind,
        initial: tuple[Any, ...] | None = None,
        hidden: Callable[..., Any] | None = None,
        uses_mask: bool = False,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self.description = description or f"{name} of {getattr(function, '__module__', '?')}"
        jax = load_jax(f"policy {self.description}")
        self.function, self.hidden = function, hidden
        self.params = jax.tree.map(np.asarray, params)
        self.initial = None if initial is None else tuple(map(np.asarray, initial))
        self.kind = kind
        self.uses_mask = uses_mask
        parts = (function, jax.tree.leaves(self.params), self.initial)
        self.identity = identity or function_identity(_called_with(*parts))
        self._compiled: Any = None
        self._compiled_hidden: Any = None

    @property
    def fixed_batch(self) -> int:  # type: ignore[override]
        """The observations that are always scored at once; see `tile`."""
        return tile()

    def apply(self, params: Any, observations: Any, memory: Any) -> tuple[Any, Any]:
        """Return (scores, memory) of a tile; for use inside programs.

        Barriers keep the compiler from mixing the network with what stands around it, which could
        change the last bits.
        """
        barrier = load_jax("a policy in JAX").lax.optimization_barrier
        params, observations, memory = barrier((params, observations, memory))
        if self.initial is None:
            scores, after = self.function(params, observations), None
        else:
            scores, after = self.function(params, observations, memory)
        if isinstance(scores, tuple):  # (mean, log standard deviation)
            scores = load_jax("a policy in JAX").numpy.stack(scores, axis=1)
        found: tuple[Any, Any] = barrier((scores.astype("float32"), after))
        return found

    def initial_memory(self, batch: int) -> Memory:
        if self.initial is None:
            return None
        return tuple(np.repeat(part[np.newaxis], batch, axis=0) for part in self.initial)

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        if self._compiled is None:
            self._compiled = SharedProgram(self.apply)
        with errors_as(PolicyFault, f"policy {self.description}: the function raised"):
            scores, after = self._compiled(self.params, observations, memory)
            return np.asarray(scores), None if after is None else tuple(map(np.asarray, after))

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        scores, after = self.evaluate(observations, memory)
        width = np.zeros((len(scores), 0), np.float32)
        if self.hidden is None:
            return Features(scores, after, width)
        if self._compiled_hidden is None:
            self._compiled_hidden = SharedProgram(self.hidden)
        given = (self.params, observations) + (() if memory is None else (memory,))
        hidden = np.asarray(self._compiled_hidden(*given), np.float32)
        return Features(scores, after, hidden)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None, "_compiled_hidden": None}


def _called_with(function: Any, params: Any, initial: Any) -> Any:
    """Return a function whose closure holds all that decides the scores."""
    return lambda: (function, params, initial)
