"""The trials of a moment for one n: the random numbers behind their actions, and when to stop.

In every plan, trial j draws the same numbers for every n, so the mistakes of a shorter
perturbation are the first ones of a longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import assert_never

import gymnasium as gym
import numpy as np

from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, stream, streams
from safemargin.core.settings import Settings
from safemargin.criticality.perturbations import UNIFORM, Perturbation
from safemargin.criticality.stopping import (
    BettingRule,
    FixedRule,
    RareLossRule,
    StoppingRule,
    StudentRule,
    WorstRule,
)
from safemargin.errors import InvalidInput
from safemargin.policies.actions import Mask, RandomActions


@dataclass(frozen=True)
class Plan:
    """The trials of one (moment, n)."""

    uniforms: Callable[[int], Floats]
    """Trial number → [n, width] numbers in [0, 1), one row for each mistake."""
    rule: StoppingRule
    exact: bool
    """Whether everything that can happen does so once: the mean is the expectation itself."""


def rule_of(settings: Settings) -> StoppingRule:
    """Make the stopping rule of the settings' trial plan."""
    if settings.trial_plan == "fixed":
        return FixedRule(settings, settings.trials)
    if settings.trial_plan == "anytime":
        return BettingRule(settings)
    if settings.trial_plan == "rule-of-three":
        return RareLossRule(settings)
    if settings.trial_plan == "paper":
        return StudentRule(settings)
    assert_never(settings.trial_plan)


def listed(sequences: Sequence[tuple[int, ...]], actions: int) -> Callable[[int], Floats]:
    """Return the numbers of each trial from which random actions are those of its sequence."""

    def of(trial: int) -> Floats:
        chosen = np.array(sequences[trial], dtype=np.float64)
        return ((chosen + 0.5) / float(actions))[:, np.newaxis]

    return of


@dataclass(eq=False)
class Planner:
    """Makes the plans of one moment."""

    settings: Settings
    random_actions: RandomActions
    keys: tuple[int, ...]
    """What identifies the moment."""
    perturbation: Perturbation = UNIFORM
    """What the mistakes are."""
    enumerable: bool = field(kw_only=True)
    """Whether nothing else is random."""
    mask: Mask = field(default=None, kw_only=True)
    """The actions that are legal now; None: all are."""

    def __post_init__(self) -> None:
        self.width = self.perturbation.width(self.random_actions)
        self._only_one = self.enumerable and not self.perturbation.draws
        uniform, space = self.perturbation.uniform, self.random_actions.space
        enumerable = self.enumerable and uniform
        self._one_action: Planner | None = None
        if uniform and self.mask is not None and isinstance(space, gym.spaces.Discrete):
            # The first action is one of those legal now. Which are legal afterwards is not known
            # beforehand, so longer sequences cannot be listed.
            legal = RandomActions(gym.spaces.Discrete(int(np.count_nonzero(self.mask))))
            self._one_action = Planner(self.settings, legal, self.keys, enumerable=enumerable)
            enumerable = False
        self.actions: int | None = None
        if enumerable and isinstance(space, gym.spaces.Discrete):
            self.actions = int(space.n)

    def plan(self, n: int) -> Plan:
        """Make the plan for n mistakes."""
        if self._only_one:
            nothing = np.empty((n, 0))
            return Plan(lambda trial: nothing, FixedRule(self.settings, 1), exact=True)
        if self.perturbation.worst:
            return self._worst(n)
        if n == 1 and self._one_action is not None:
            return self._one_action.plan(1)
        settings = self.settings
        if settings.trial_plan == "fixed":
            if self.actions is not None and self.actions**n <= max(
                settings.trials, settings.max_enumerated
            ):
                sequences = list(product(range(self.actions), repeat=n))
                rule = FixedRule(settings, len(sequences))
                return Plan(listed(sequences, self.actions), rule, exact=True)
            return Plan(lambda trial: self._stratified[:n, trial], rule_of(settings), exact=False)
        return Plan(lambda trial: self._independent(trial, n), rule_of(settings), exact=False)

    def _worst(self, n: int) -> Plan:
        """Make the plan that takes every sequence, under a mask some of them more than once."""
        if self.perturbation.beam is not None:
            raise InvalidInput(
                "the trials of a beam search depend on one another, so none of them can be played "
                "alone"
            )
        actions = int(self.random_actions.space.n)  # type: ignore[attr-defined]
        sequences = list(product(range(actions), repeat=n))
        rule = WorstRule(self.settings, len(sequences))
        return Plan(listed(sequences, actions), rule, exact=True)

    def _independent(self, trial: int, n: int) -> Floats:
        generator = stream(self.settings.seed, Purpose.TRIAL_ACTIONS, *self.keys, trial)
        return generator.random((n, self.width))

    def independent(self, trials: Sequence[int], n: int) -> Floats:  # [trials, n, width]
        """Return the numbers of many trials that each have a stream of their own."""
        each = streams(self.settings.seed, Purpose.TRIAL_ACTIONS, self.keys, trials)
        return np.stack([generator.random((n, self.width)) for generator in each])

    @cached_property
    def _stratified(self) -> Floats:
        """A Latin hypercube over the positions of a perturbation, [positions, trials, width].

        At each position, one trial's number falls into each of N equal strata, in an independent
        order. Every single trial is uniform and independent over positions, so the mean is
        unbiased, while over all trials each first, second, … action is taken equally often.
        """
        count, longest = self.settings.trials, max(self.settings.n_values)
        generator = stream(self.settings.seed, Purpose.TRIAL_STRATA, *self.keys)
        rows = np.empty((longest, count, self.width))
        for position in range(longest):
            for column in range(self.width):
                within = generator.random(count)
                rows[position, :, column] = (generator.permutation(count) + within) / count
        return rows
