"""A Python function as a policy: a batch of observations in, scores out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safemargin.errors import PolicyFault, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, checked_fixed_batch
from safemargin.policies.identity import function_identity


class FunctionPolicy(BatchedPolicy):
    """Takes scores from `function(observations)`: [batch, ...] in, [batch, actions] out.

    The identity is a best effort (`function_identity`); pass `identity` to replace it.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        kind: ScoreKind,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        self.function = function
        self.kind = kind
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self.identity = identity or function_identity(function)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self.description = description or f"{name} of {getattr(function, '__module__', '?')}"

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        with errors_as(PolicyFault, f"policy {self.description}: the function raised"):
            return self.function(observations), None
