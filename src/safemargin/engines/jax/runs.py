"""Runs: what lanes do, each from a start to its end or limit, a batch of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array, Floats
from safemargin.engines.jax.draws import PolicyDraws, Schedules
from safemargin.engines.jax.program import Program, Start


@dataclass(eq=False)
class Bank:
    """Places where lanes can begin."""

    start: Start
    _copy: Start | None = None

    def on(self, program: Program) -> Start:
        """Return it on every device, because any lane may begin at any of its places."""
        if self._copy is None:
            self._copy = program.jax.device_put(self.start, program.whole)
        return self._copy


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The steps that some runs took in one call of the program."""

    numbers: npt.NDArray[np.int64]  # [runs]
    since: npt.NDArray[np.int64]  # [runs] their steps before
    count: npt.NDArray[np.int64]  # [runs] their steps in this call
    rewards: npt.NDArray[np.float32]  # [runs, steps]
    scores: Array  # [runs, steps, …]
    actions: Array  # [runs, steps, …]


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Runs that are over."""

    numbers: npt.NDArray[np.int64]  # [runs]
    steps: npt.NDArray[np.int64]  # [runs]
    codes: npt.NDArray[np.uint8]  # [runs] what the last step was like; see `program`
    returns: Floats  # [runs]; 0 where `taken` looks at the steps
    first_scores: Array  # [runs, …]


@dataclass(eq=False)
class Runs:
    """A batch of runs, numbered from 0, that begin in one bank."""

    bank: Bank
    slots: npt.NDArray[np.int32]  # [runs]
    """Where in the bank each begins."""
    limits: npt.NDArray[np.int64]  # [runs]
    """The most steps of each; the horizon unless `taken` looks at them."""
    finished: Callable[[Finished], None]
    """To be called with those that are over."""
    keys: npt.NDArray[np.uint32] | None = None  # [runs, 2]
    """What their environments draw from; None where they draw nothing."""
    schedule: Schedules | None = None
    """The actions that each is given in its first steps."""
    draws: Sequence[PolicyDraws] | None = None
    """What the policy draws; None where it draws nothing."""
    taken: Callable[[Taken], None] | None = None
    """To be called with their steps after each call; a run that begins anew has 0 before."""
    owner: Any = None
    """What they are a part of."""
    last_of: npt.NDArray[np.int64] = field(init=False)  # [runs]
    """After how many steps nothing has to be written into the orders of each any more."""

    def __post_init__(self) -> None:
        if self.draws is not None:
            self.last_of = self.limits
        elif self.schedule is not None:
            self.last_of = self.schedule.lengths
        else:
            self.last_of = np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        return len(self.slots)

    def again(self, numbers: npt.NDArray[np.int64]) -> None:
        """Prepare some of them to begin anew."""
        if self.draws is not None:
            for number in numbers.tolist():
                self.draws[number].begin()
