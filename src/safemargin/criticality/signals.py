"""What is lost: discounted reward, or another number that each step gives.

A signal is a number for each step, the higher the better; its sum over the horizon is the return of
a rollout, and the loss is how much lower that is after mistakes. A cost is taken with its sign
turned round, so that a cost that rises is a loss, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np

from safemargin.core.measured import Written, parse_signal
from safemargin.environments import Simulator, Step
from safemargin.errors import EnvironmentFault, InvalidInput, did_you_mean


@dataclass(frozen=True, slots=True)
class Signal:
    """The number that each step adds to a return."""

    written: Written
    text: str

    @classmethod
    def parse(cls, text: str) -> Signal:
        """Return the signal that a text stands for."""
        return cls(parse_signal(text), text)

    @property
    def discounted(self) -> bool:
        """Whether later steps count less."""
        return self.written.kind in ("reward", "cost", "info")

    @property
    def in_info(self) -> bool:
        """Whether the environment has to give it in `info`."""
        return self.written.kind in ("cost", "info")

    def value(self, step: Step, simulator: Simulator) -> float:
        """Return the signal of the step that the simulator has just taken."""
        kind = self.written.kind
        if kind in ("reward", "undiscounted"):
            return step.reward
        if kind == "termination":
            return 1.0
        if kind == "failure":
            return -float(step.terminated)
        found = self._in(simulator.info, simulator)
        return -found if kind == "cost" else found

    def _in(self, info: object, simulator: Simulator) -> float:
        name = self.written.argument or "cost"
        where = f"{simulator.name}: signal {self.text!r}: the info of step {simulator.steps}"
        if not isinstance(info, Mapping) or name not in info:
            known = [str(key) for key in info] if isinstance(info, Mapping) else []
            remedy = did_you_mean(name, known) if known else "it holds nothing"
            raise InvalidInput(
                f"{where} has no {name!r}; {remedy}; name one as cost:KEY or info:KEY"
            )
        value = info[name]
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        if not isinstance(value, Real | np.bool_) or not math.isfinite(float(value)):
            raise EnvironmentFault(f"{where} holds {value!r:.40} as {name!r}, not a finite number")
        return float(value)
