"""What the runs of one study have in common: environment, policy, settings, and how to judge."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Episode, Floats
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.criticality.signals import Signal
from safemargin.engines.base import Job
from safemargin.engines.jax.program import (
    BAD_OBSERVATION,
    BAD_REWARD,
    BAD_SCORES,
    TERMINATED,
    Program,
)
from safemargin.errors import EnvironmentFault, PolicyFault
from safemargin.policies.actions import PolicyActions, RandomActions


@dataclass(eq=False)
class Parts:
    """The parts of a study that all of its runs share."""

    job: Job
    program: Program

    def __post_init__(self) -> None:
        space = self.program.space
        self.name = self.program.functional.name
        self.settings: Settings = self.job.settings
        self.randomness: Randomness = self.job.randomness
        self.masked = self.program.masked
        """Whether some actions may be illegal."""
        self.policy_masked = self.masked and self.program.policy.uses_mask
        """Whether the policy's own random actions are legal ones."""
        self.random_actions = RandomActions(space)
        self.policy_actions = PolicyActions(space, self.job.policy.kind, self.settings)
        self.signal = Signal.parse(self.settings.signal)
        steps = np.arange(self.settings.horizon)
        self._discounts = self.settings.gamma ** (steps if self.signal.discounted else 0 * steps)

    def returns_of(
        self,
        rewards: npt.NDArray[np.floating],  # [runs, steps or more]
        steps: npt.NDArray[np.integer],  # [runs]
        codes: npt.NDArray[np.uint8],  # [runs]
    ) -> Floats:  # [runs]
        """Return Σ γ^k r_k of at most a horizon, or another signal, of runs, exactly rounded.

        `codes` say what their last steps were like.
        """
        kind = self.signal.written.kind
        if kind == "termination":
            return steps.astype(np.float64)
        if kind == "failure":
            return np.where(codes & TERMINATED, -1.0, 0.0)
        row, step = np.nonzero(rewards[:, : steps.max(initial=0)])
        within = step < steps[row]
        row, step = row[within], step[within]
        counted = (rewards[row, step].astype(np.float64) * self._discounts[step]).tolist()
        ends = np.searchsorted(row, np.arange(len(rewards) + 1)).tolist()
        return np.array([math.fsum(counted[a:b]) for a, b in itertools.pairwise(ends)])

    def recorded_return(self, episode: Episode, step: int) -> float:
        """Return what the recorded episode returned from a step on."""
        until = step + self.settings.horizon
        ended = TERMINATED if episode.terminated and until >= episode.steps else 0
        rewards = episode.rewards[np.newaxis, step:until]
        steps, codes = np.array([rewards.shape[1]]), np.array([ended], np.uint8)
        return float(self.returns_of(rewards, steps, codes)[0])

    def check(self, code: int, what: str) -> None:
        """Raise an error if something in a run was not a number."""
        where = f"{self.name}: {{}} in {what} {{}}"
        if code & BAD_OBSERVATION:
            raise EnvironmentFault(where.format("the observation", "contains NaN"))
        if code & BAD_SCORES:
            raise PolicyFault(
                f"policy {self.job.policy.description}: scores must be finite numbers, and some "
                f"in {what} are not"
            )
        if code & BAD_REWARD:
            raise EnvironmentFault(
                where.format("the reward", "is NaN or infinite, not a finite number")
            )

    def diverged(self, episode: Episode, step: int) -> EnvironmentFault:
        """Make the error for a replay that differs from what was recorded."""
        return EnvironmentFault(
            f"replaying episode {episode.key} (seed {episode.seed}) did not give what was recorded "
            f"at step {step}: the environment's step or the policy is not a pure function, or the "
            "study was begun on another kind of device; run the doctor on it"
        )
