"""Random actions and the policy's own draws, from the streams that every engine draws from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array, Floats
from safemargin.policies.actions import PolicyActions, RandomActions


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Actions that are given in the first steps of a run; afterwards the policy acts."""

    actions: Array  # [steps] or [steps, dimensions]
    words: npt.NDArray[np.uint32] | None = None  # [steps, 2]
    """Numbers in [0, 1), as 32 and 21 bits, which choose one of the legal actions instead."""

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True, eq=False)
class Schedules:
    """The schedules of a batch of runs, padded to the same length."""

    actions: Array  # [runs, steps] or [runs, steps, dimensions]
    lengths: npt.NDArray[np.int64]  # [runs]
    words: npt.NDArray[np.uint32] | None = None  # [runs, steps, 2]

    @property
    def longest(self) -> int:
        """The number of steps in which any action is given."""
        return int(self.actions.shape[1])

    @classmethod
    def of(cls, rows: Sequence[Schedule]) -> Schedules:
        """Return single schedules as one record; there is at least one."""
        lengths = np.array([len(row) for row in rows], np.int64)
        shape, first = (len(rows), int(lengths.max())), rows[0]
        actions = np.zeros((*shape, *first.actions.shape[1:]), first.actions.dtype)
        words = None if first.words is None else np.zeros((*shape, 2), np.uint32)
        for number, row in enumerate(rows):
            actions[number, : len(row)] = row.actions
            if words is not None and row.words is not None:
                words[number, : len(row)] = row.words
        return cls(actions, lengths, words)


def schedule_of(uniforms: Floats, random_actions: RandomActions, *, masked: bool) -> Schedule:
    """Return the random actions that these numbers, [steps, width], stand for.

    `masked`: which actions are legal is known only when they are taken.
    """
    space = random_actions.space
    if masked:
        exact = (uniforms[:, 0] * 2.0**53).astype(np.uint64)
        words = np.stack([exact >> np.uint64(21), exact & np.uint64(2**21 - 1)], axis=1)
        return Schedule(np.zeros(len(uniforms), np.int32), words.astype(np.uint32))
    if isinstance(space, gym.spaces.Discrete):
        return Schedule((uniforms[:, 0] * space.n).astype(np.int32) + np.int32(space.start))
    shape = (len(uniforms), *(space.shape or ()))
    rows = [random_actions(row) for row in uniforms]
    return Schedule(np.array(rows, dtype=space.dtype).reshape(shape))


@dataclass(eq=False)
class PolicyDraws:
    """What a policy draws in one run, some steps at a time."""

    make: Callable[[], np.random.Generator]
    """Makes the run's own stream, from its beginning."""
    actions: PolicyActions
    masked: bool
    first: int = 0
    """The first step that draws."""
    _left: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Draw from the beginning again."""
        self._generator, self._left = self.make(), np.zeros(0)

    def sampled(self, steps: int) -> Floats:
        """Return what the next steps of a sampled policy draw, [steps, width]."""
        if self.actions.kind == "gaussian":
            return self._generator.standard_normal((steps, self.actions.random_actions.width))
        return self._generator.random((steps, 1))

    def explored(self, steps: int) -> tuple[npt.NDArray[np.int64], Schedule]:
        """Return in which of the next steps an ε-greedy policy acts at random, and how."""
        at, uniforms, step = [], [], 0
        while step < steps:
            decisions = self._take(steps - step)
            hits = np.flatnonzero(decisions < self.actions.epsilon)
            if not len(hits):
                break
            first = int(hits[0])
            self._left = np.concatenate([decisions[first + 1 :], self._left])
            at.append(step + first)
            uniforms.append(self._take(self.actions.random_actions.width))
            step += first + 1
        rows = np.array(uniforms).reshape(len(at), self.actions.random_actions.width)
        return np.array(at, np.int64), schedule_of(
            rows, self.actions.random_actions, masked=self.masked
        )

    def _take(self, count: int) -> Floats:
        """Return the next numbers of the stream."""
        more = self._generator.random(max(count - len(self._left), 0))
        numbers = np.concatenate([self._left, more])
        self._left = numbers[count:]
        return numbers[:count]
