"""Scores that do not depend on the batch an observation is part of.

Matrix products of different sizes use different kernels, whose sums differ in the last bits. With
one fixed batch size they cannot differ: every call is split into parts of `fixed_batch` rows, and
the last part is padded. Where larger batches proved to give the same bits (`widen`), they are not
split.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, PolicyFault, errors_as
from safemargin.policies.base import Features, Memory, Observations, Policy, for_each
from safemargin.policies.checks import checked_scores, sample_batch
from safemargin.policies.observations import arrays_of

WIDENED_BY = 64
"""The number of random observations on which larger batches must prove to give the same bits."""


class BatchedPolicy(Policy):
    """A policy whose `evaluate` sees only batches of `fixed_batch` rows."""

    fixed_batch: int | None = 1
    """Rows per evaluation; None: batches as they come, where their size is known not to matter."""

    _widened = 1

    @abstractmethod
    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        """Return the raw scores of one part, and the memory after it."""

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
            rows: Any = slice(start, start + size)
            if kept < size:  # the last part, where the last row is repeated as padding
                rows = np.minimum(np.arange(start, start + size), batch - 1)
            raw, after = self.evaluate(
                for_each(observations, itemgetter(rows)),
                None if memory is None else tuple(array[rows] for array in memory),
            )
            scores.append(self._checked(raw, size)[:kept])
            if after is not None:
                memories.append(tuple(array[:kept] for array in after))
        joined = tuple(np.concatenate(arrays) for arrays in zip(*memories, strict=True))
        return np.concatenate(scores), joined if memories else None

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        """Return raw scores and features of one part; by default there are no features."""
        raw, after = self.evaluate(observations, memory)
        return Features(raw, after, np.zeros((batch_size(observations), 0), np.float32))

    def features(self, observations: Observations, memory: Memory = None) -> Features:
        batch = batch_size(observations)
        if memory is None:
            memory = self.initial_memory(batch)
        found = []
        for row in range(batch):  # one at a time, so that no row depends on the others
            rows = np.full(self.fixed_batch or 1, row)
            found.append(
                self.evaluate_features(
                    for_each(observations, itemgetter(rows)),
                    None if memory is None else tuple(array[rows] for array in memory),
                )
            )
        memories = [each.memory for each in found if each.memory is not None]
        values = [each.value[:1] for each in found if each.value is not None]
        return Features(
            self._checked(np.concatenate([each.scores[:1] for each in found]), batch),
            tuple(
                np.concatenate([part[:1] for part in parts])
                for parts in zip(*memories, strict=True)
            )
            if memories
            else None,
            np.concatenate([np.asarray(each.hidden[:1], np.float32) for each in found]),
            np.concatenate(values).astype(np.float32) if values else None,
        )

    def widen(self, space: gym.Space[Any], rows: int) -> int:
        """Evaluate up to this many rows at once where that changes no bit of any score.

        The shape of a batch, not its numbers, decides which kernel runs and in which order it adds
        up: what holds for random observations holds for all. Many are needed, because sums of a
        few numbers come out the same in most orders. A policy that takes only one row at a time
        keeps doing so.
        """
        self._widened = 1
        if self.initial_memory(1) is not None or not isinstance(space, gym.spaces.Box):
            return 1
        observations: Any = sample_batch(space, WIDENED_BY)
        with contextlib.suppress(PolicyFault):
            apart, _ = self.scores(observations)
            for size in range(2, rows + 1):
                for start in range(0, WIDENED_BY - size + 1, size):
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
    """Return any policy's checked scores and its memory; its own errors become PolicyFault."""
    with errors_as(PolicyFault, f"policy {policy.description}: scores() raised"):
        scores, after = policy.scores(observations, memory)
    if isinstance(policy, BatchedPolicy):  # has checked them itself
        return scores, after
    batch = batch_size(observations)
    return checked_scores(
        scores, kind=policy.kind, batch=batch, description=policy.description
    ), after


def checked_fixed_batch(fixed_batch: int | None) -> int | None:
    """Return a usable batch size, or raise InvalidInput."""
    if fixed_batch is not None and fixed_batch < 1:
        raise InvalidInput(f"fixed_batch must be at least 1, or None, got {fixed_batch}")
    return fixed_batch


def batch_size(observations: Observations) -> int:
    """Return the number of observations in a batch."""
    array = arrays_of(observations)[0]
    if np.ndim(array) == 0:
        raise PolicyFault("observations come in batches: expected [batch, ...], got one number")
    return len(array)
