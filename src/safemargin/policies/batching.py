"""Scores that do not depend on the batch an observation travels in.

Matrix products of different sizes run through different kernels, whose sums differ in the last
bits. A policy that is always asked with the same batch size cannot differ: every call is split
into parts of `fixed_batch` rows, and the last part is padded. Where larger batches were seen to
give the same bits (`widen`), they are not split.
"""

from __future__ import annotations

import contextlib
import copy
from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, PolicyFault, errors_as
from safemargin.policies.base import Memory, Observations, Policy
from safemargin.policies.checks import checked_scores

WIDENED_BY = 64
"""Random observations whose scores must not depend on the batch, before larger ones are used."""


class BatchedPolicy(Policy):
    """A policy whose `evaluate` sees only batches of `fixed_batch` rows."""

    fixed_batch: int | None = 1
    """Rows per evaluation; None: the batch as it comes, for those who know it does not matter."""

    _widened = 1

    @abstractmethod
    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        """Raw scores of one part, and the memory after it."""

    def scores(
        self, observations: Observations, memory: Memory = None
    ) -> tuple[npt.NDArray[np.float32], Memory]:
        batch = batch_size(observations)
        if batch == 0:
            raise InvalidInput(f"policy {self.description}: a batch needs at least 1 observation")
        if memory is None:
            memory = self.initial_memory(batch)
        size = batch if self.fixed_batch is None else self.fixed_batch
        if size == batch or 1 < batch <= self._widened:  # the common case, kept free of copies
            raw, after = self.evaluate(observations, memory)
            return self._checked(raw, batch), after
        scores: list[npt.NDArray[np.float32]] = []
        memories: list[tuple[npt.NDArray[Any], ...]] = []
        for start in range(0, batch, size):
            kept = min(size, batch - start)
            rows = slice(start, start + size) if kept == size else _padded(start, size, batch)
            raw, after = self.evaluate(
                _take(observations, rows),
                None if memory is None else tuple(array[rows] for array in memory),
            )
            scores.append(self._checked(raw, size)[:kept])
            if after is not None:
                memories.append(tuple(array[:kept] for array in after))
        joined = tuple(np.concatenate(arrays) for arrays in zip(*memories, strict=True))
        return np.concatenate(scores), joined if memories else None

    def widen(self, space: gym.Space[Any], rows: int) -> int:
        """Take batches of up to so many rows in one go where that changes no bit of any score.

        Which kernel runs, and so in which order it adds up, depends on the shape of a batch but not
        on its numbers: what is the same for random observations is the same for all. There must be
        many of them, since sums of few numbers come out the same in most orders. A policy that
        cannot take more rows than one at a time is left with that.
        """
        self._widened = 1
        if self.initial_memory(1) is not None or not isinstance(space, gym.spaces.Box):
            return 1
        source = copy.deepcopy(space)
        source.seed(0)
        observations = np.stack([source.sample() for _ in range(WIDENED_BY)])
        with contextlib.suppress(PolicyFault):
            apart, _ = self.scores(observations)
            for size in range(2, rows + 1):
                for start in range(0, len(observations) - size + 1, size):
                    part = slice(start, start + size)
                    raw, _ = self.evaluate(observations[part], None)
                    if self._checked(raw, size).tobytes() != apart[part].tobytes():
                        return self._widened
                self._widened = size
        return self._widened

    def _checked(self, raw: Any, batch: int) -> npt.NDArray[np.float32]:
        return checked_scores(raw, kind=self.kind, batch=batch, description=self.description)


def ask(
    policy: Policy, observations: Observations, memory: Memory
) -> tuple[npt.NDArray[np.float32], Memory]:
    """Any policy's scores, examined, and its memory after them; what it raises is a PolicyFault."""
    with errors_as(PolicyFault, f"policy {policy.description}: scores() raised"):
        scores, after = policy.scores(observations, memory)
    if isinstance(policy, BatchedPolicy):  # has examined them itself
        return scores, after
    batch = batch_size(observations)
    return checked_scores(
        scores, kind=policy.kind, batch=batch, description=policy.description
    ), after


def checked_fixed_batch(fixed_batch: int | None) -> int | None:
    """A batch size that can be used, or InvalidInput."""
    if fixed_batch is not None and fixed_batch < 1:
        raise InvalidInput(f"fixed_batch must be at least 1, or None, got {fixed_batch}")
    return fixed_batch


def batch_size(observations: Observations) -> int:
    """How many observations a batch holds."""
    array = next(iter(observations.values())) if isinstance(observations, dict) else observations
    if np.ndim(array) == 0:
        raise PolicyFault("observations come in batches: expected [batch, ...], got one number")
    return len(array)


def _padded(start: int, size: int, batch: int) -> npt.NDArray[np.intp]:
    """The rows of the last part; past the end the last row is repeated."""
    return np.minimum(np.arange(start, start + size), batch - 1)


def _take(observations: Observations, rows: slice | npt.NDArray[np.intp]) -> Observations:
    if isinstance(observations, dict):
        return {key: array[rows] for key, array in observations.items()}
    return observations[rows]
