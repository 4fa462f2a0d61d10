"""The trials of one moment: which are run next, and what their returns say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats, Measurement
from safemargin.core.seeding import Purpose, stream, streams
from safemargin.criticality.plans import Plan, Planner
from safemargin.engines.base import MomentTask
from safemargin.engines.jax.draws import PolicyDraws, Schedules, schedule_of
from safemargin.engines.jax.program import ENDED
from safemargin.engines.jax.runs import Bank, Finished, Runs
from safemargin.environments.functional.keys import key_of_stream
from safemargin.environments.simulator import Mask

if TYPE_CHECKING:
    from safemargin.engines.jax.parts import Parts

SHARE_OF_LIKELY = 0.6
"""A round runs this share of the trials that will probably be needed."""


@dataclass(slots=True, eq=False)
class _Series:
    """The trials of one n, in index order; n is 0 and there is no plan without mistakes."""

    n: int
    plan: Plan | None
    returns: Floats = field(default_factory=lambda: np.zeros(0))
    steps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def wanted(self) -> int:
        """The number of trials that the next round runs."""
        if self.plan is None or self.plan.rule.stopped:
            return 0
        rule = self.plan.rule
        return max(rule.certain, math.ceil(SHARE_OF_LIKELY * rule.likely))


@dataclass(slots=True, eq=False)
class _Round:
    """The trials that run now, those of one series after those of another."""

    parts: list[tuple[_Series, int]]
    """The series, and how many trials of each."""
    left: int
    """The number of trials that are not over."""
    returns: Floats
    steps: npt.NDArray[np.int64]


class MomentTrials:
    """Estimates c*(t, n) for several n at one moment.

    Trials run in rounds: those that are certain to be needed, then a share of those that will
    probably be. A round begins when the one before it is complete, so which trials are run does
    not depend on the lanes.
    """

    def __init__(
        self,
        parts: Parts,
        task: MomentTask,
        bank: Bank,
        *,
        slot: int,
        mask: Mask | None,
    ) -> None:
        episode, moment = task.episode, task.moment
        self.parts, self.episode, self.moment = parts, episode, moment
        self.bank, self.slot = bank, slot
        self.keys = (*episode.key.stream_keys, moment.step)
        self._planner = Planner(
            parts.settings,
            parts.random_actions,
            self.keys,
            enumerable=parts.randomness.none,
            mask=mask,
        )
        self.every = [_Series(n, self._planner.plan(n)) for n in sorted(task.n_values)]
        self._unperturbed = _Series(0, None)
        self._recorded = parts.recorded_return(episode, moment.step)
        self._first_scores = episode.scores[moment.step]
        self._round: _Round | None = None
        self._drawn_keys = np.zeros((0, 2), np.uint32)
        self._drawn: Schedules | None = None
        """Trial number → its random actions for the largest n, of which others take the first."""

    @property
    def waiting(self) -> bool:
        """Whether a round has yet to be completed."""
        return self._round is not None

    @property
    def complete(self) -> bool:
        """Whether every rule has stopped."""
        return not self.waiting and not any(series.wanted for series in self.every)

    def next_runs(self) -> Runs:
        """Return the runs of the next round."""
        random = not self.parts.randomness.none
        wanted = [(series, series.wanted) for series in self.every[::-1]]
        if random:
            most = max(len(series.returns) + count for series, count in wanted)
            wanted.insert(0, (self._unperturbed, max(most - len(self._unperturbed.returns), 0)))
        parts = [(series, count) for series, count in wanted if count]
        numbers = np.concatenate(
            [len(series.returns) + np.arange(count) for series, count in parts]
        )
        size = len(numbers)
        self._round = _Round(parts, size, np.zeros(size), np.zeros(size, np.int64))
        return Runs(
            bank=self.bank,
            slots=np.full(size, self.slot, np.int32),
            limits=np.full(size, self.parts.settings.horizon, np.int64),
            finished=self._finish,
            keys=self._keys_of(numbers) if self.parts.randomness.environment else None,
            schedule=self._mistakes(parts, numbers),
            draws=self._draws_of(numbers) if self.parts.randomness.policy else None,
            owner=self,
        )

    def measurements(self) -> list[Measurement]:
        """Return what was found out, in the order of the n."""
        every = [self._measurement(series) for series in self.every]
        own = int(self._unperturbed.steps.sum()) + self.moment.step
        return [replace(every[0], steps=every[0].steps + own), *every[1:]]

    def _keys_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Return the keys that the environment draws from in all trials of these numbers."""
        fresh_ones = range(len(self._drawn_keys), int(numbers.max()) + 1)
        each = streams(self.parts.settings.seed, Purpose.TRIAL_ENVIRONMENT, self.keys, fresh_ones)
        fresh = [key_of_stream(generator) for generator in each]
        if fresh:
            self._drawn_keys = np.concatenate([self._drawn_keys, np.stack(fresh)])
        return self._drawn_keys[numbers]

    def _draws_of(self, numbers: npt.NDArray[np.int64]) -> list[PolicyDraws]:
        """Return what the policy draws in each trial."""
        seed, parts = self.parts.settings.seed, self.parts
        return [
            PolicyDraws(
                lambda number=number: stream(  # type: ignore[misc]
                    seed, Purpose.TRIAL_POLICY, *self.keys, number
                ),
                parts.policy_actions,
                parts.policy_masked,
            )
            for number in numbers.tolist()
        ]

    def _mistakes(
        self, parts: list[tuple[_Series, int]], numbers: npt.NDArray[np.int64]
    ) -> Schedules:
        """Return the random actions of the trials of a round."""
        lengths = np.repeat([series.n for series, _ in parts], [count for _, count in parts])
        largest = self.every[-1].plan
        assert largest is not None
        if self.parts.settings.trial_plan != "fixed" and not largest.exact:
            drawn = self._nested(int(numbers.max()) + 1)
            words = None if drawn.words is None else drawn.words[numbers]
            return Schedules(drawn.actions[numbers], lengths, words)
        rows = [
            series.plan.uniforms(number) if series.plan else self._no_mistakes
            for series, count in parts
            for number in range(len(series.returns), len(series.returns) + count)
        ]
        masked, random_actions = self.parts.masked, self.parts.random_actions
        return Schedules.of([schedule_of(row, random_actions, masked=masked) for row in rows])

    @property
    def _no_mistakes(self) -> Floats:
        return np.zeros((0, self.parts.random_actions.width))

    def _nested(self, count: int) -> Schedules:
        """Return the random actions of at least this many trials.

        Each trial has a stream of its own, and those of a smaller n are the first of a larger n.
        """
        known = 0 if self._drawn is None else len(self._drawn.lengths)
        if known >= count and self._drawn is not None:
            return self._drawn
        uniforms = self._planner.independent(range(known, count), self.every[-1].n)
        runs, steps, width = uniforms.shape
        flat = schedule_of(
            uniforms.reshape(runs * steps, width),
            self.parts.random_actions,
            masked=self.parts.masked,
        )
        actions = flat.actions.reshape(runs, steps, *flat.actions.shape[1:])
        words = None if flat.words is None else flat.words.reshape(runs, steps, 2)
        if self._drawn is not None:
            actions = np.concatenate([self._drawn.actions, actions])
            if words is not None and self._drawn.words is not None:
                words = np.concatenate([self._drawn.words, words])
        self._drawn = Schedules(actions, np.full(count, steps), words)
        return self._drawn

    def _finish(self, over: Finished) -> None:
        """Take the returns of trials that are over."""
        assert self._round is not None
        for code in over.codes[over.codes > ENDED].tolist():
            where = f"a trial at step {self.moment.step} of episode {self.episode.key}"
            self.parts.check(code, where)
        if (over.first_scores != self._first_scores).any():
            raise self.parts.diverged(self.episode, self.moment.step)
        self._round.returns[over.numbers] = over.returns
        self._round.steps[over.numbers] = over.steps
        self._round.left -= len(over.numbers)
        if not self._round.left:
            self._judge(self._round)
            self._round = None

    def _judge(self, of: _Round) -> None:
        """Give the rules the losses of a round, in index order."""
        since = 0
        for series, count in of.parts:
            now = slice(since, since + count)
            series.returns = np.concatenate([series.returns, of.returns[now]])
            series.steps = np.concatenate([series.steps, of.steps[now]])
            since += count
        for series, _ in of.parts:
            if series.plan is None:
                continue
            rule = series.plan.rule
            losses = self._without(len(series.returns)) - series.returns
            for loss in losses[rule.trials :].tolist():
                if rule.stopped:
                    break
                rule.add(loss)

    def _without(self, count: int) -> Floats:
        """Return the returns without mistakes that the first trials are compared with."""
        if self.parts.randomness.none:
            return np.full(count, self._recorded)
        return self._unperturbed.returns[:count]

    def _measurement(self, series: _Series) -> Measurement:
        assert series.plan is not None
        plan, rule = series.plan, series.plan.rule
        count = rule.trials
        used = self._without(1 if self.parts.randomness.none else count)
        return Measurement(
            estimate=rule.estimate(series.n, used.tolist(), exact=plan.exact),
            perturbed=series.returns[:count],
            unperturbed=used,
            steps=int(series.steps.sum()),
            wasted=int(series.steps[count:].sum()),
        )
