"""The trials of one moment: which are run next, and what their returns say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Measurement
from safemargin.core.seeding import Purpose, stream
from safemargin.criticality.plans import Plan, Planner
from safemargin.engines.base import MomentTask
from safemargin.engines.jax.draws import PolicyDraws, Schedule, schedule_of
from safemargin.engines.jax.group import Run
from safemargin.engines.jax.program import ENDED
from safemargin.environments.functional.keys import key_of_stream
from safemargin.environments.simulator import Mask

if TYPE_CHECKING:
    from safemargin.engines.jax.parts import Parts
    from safemargin.engines.jax.pool import Bank

SHARE_OF_LIKELY = 0.6
"""A round runs this share of the trials that will probably be needed."""

_NO_KEY = np.zeros(2, np.uint32)


@dataclass(slots=True, eq=False)
class _Trial:
    """One trial, once it has been run."""

    discounted: float | None = None
    steps: int = 0


@dataclass(slots=True, eq=False)
class _Series:
    """The trials of one n, in index order."""

    n: int
    plan: Plan
    trials: list[_Trial] = field(default_factory=list)


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
        planner = Planner(
            parts.settings,
            parts.random_actions,
            self.keys,
            enumerable=parts.randomness.none,
            mask=mask,
        )
        self.every = [_Series(n, planner.plan(n)) for n in task.n_values]
        self._unperturbed: list[_Trial] = []
        self._recorded = parts.recorded_return(episode, moment.step)
        self._first_scores = episode.scores[moment.step].tobytes()
        self._running = 0
        self._drawn_keys: dict[int, npt.NDArray[np.uint32]] = {}
        self._longest: dict[int, Schedule] = {}
        """Trial number → its random actions for the largest n so far."""

    @property
    def complete(self) -> bool:
        """Whether every rule has stopped."""
        return self._running == 0 and all(each.plan.rule.stopped for each in self.every)

    def next_runs(self) -> list[Run]:
        """Return the runs of the next round, if the last one is complete."""
        if self._running:
            return []
        runs = []
        for series in self.every[::-1]:
            rule = series.plan.rule
            if rule.stopped:
                continue
            count = max(rule.certain, math.ceil(SHARE_OF_LIKELY * rule.likely))
            for number in range(len(series.trials), len(series.trials) + count):
                if not self.parts.randomness.none and number >= len(self._unperturbed):
                    self._unperturbed.append(_Trial())
                    runs.append(self._run(self._unperturbed[-1], 0, number, None))
                series.trials.append(_Trial())
                runs.append(self._run(series.trials[-1], series.n, number, series.plan))
        self._running = len(runs)
        return runs

    def measurements(self) -> list[Measurement]:
        """Return what was found out, in the order of the n."""
        every = [self._measurement(series) for series in self.every]
        own = sum(trial.steps for trial in self._unperturbed) + self.moment.step
        return [replace(every[0], steps=every[0].steps + own), *every[1:]]

    def _run(self, trial: _Trial, n: int, number: int, plan: Plan | None) -> Run:
        parts = self.parts
        schedule = None if plan is None else self._mistakes(plan, n, number)
        key, seed, randomness = _NO_KEY, parts.settings.seed, parts.randomness
        if randomness.environment:
            key = self._key(number)
        draws = None
        if randomness.policy:
            draws = PolicyDraws(
                lambda: stream(seed, Purpose.TRIAL_POLICY, *self.keys, number),
                parts.policy_actions,
                parts.policy_masked,
            )

        def finished(run: Run) -> None:
            self._finish(trial, run)

        limit = parts.settings.horizon
        return Run(self.slot, limit, key, schedule, finished, draws, owner=self)

    def _key(self, number: int) -> npt.NDArray[np.uint32]:
        """Return the key that the environment draws from in all trials of this number."""
        if number not in self._drawn_keys:
            seed = self.parts.settings.seed
            drawn = stream(seed, Purpose.TRIAL_ENVIRONMENT, *self.keys, number)
            self._drawn_keys[number] = key_of_stream(drawn)
        return self._drawn_keys[number]

    def _mistakes(self, plan: Plan, n: int, number: int) -> Schedule:
        """Return the random actions of a trial.

        Where each trial has a stream of its own, those of a smaller n are the first of a larger n.
        """
        parts = self.parts
        nested = not plan.exact and parts.settings.trial_plan != "fixed"
        longest = self._longest.get(number) if nested else None
        if longest is None or len(longest) < n:
            uniforms = plan.uniforms(number)
            longest = schedule_of(uniforms, parts.random_actions, masked=parts.masked)
            if nested:
                self._longest[number] = longest
        return longest.first(n)

    def _finish(self, trial: _Trial, run: Run) -> None:
        if run.code > ENDED:
            where = f"a trial at step {self.moment.step} of episode {self.episode.key}"
            self.parts.check(run, where)
        if run.first_scores.tobytes() != self._first_scores:
            raise self.parts.diverged(self.episode, self.moment.step)
        trial.discounted = self.parts.return_of(run.rewards, run.code)
        trial.steps = run.steps
        self._running -= 1
        if not self._running:
            for series in self.every:
                self._judge(series)

    def _judge(self, series: _Series) -> None:
        """Give the rule the losses of the round, in index order."""
        rule = series.plan.rule
        while not rule.stopped and rule.trials < len(series.trials):
            number = rule.trials
            rule.add(self._without(number) - _known(series.trials[number]))

    def _without(self, number: int) -> float:
        """Return the return without mistakes that a trial is compared with."""
        return self._recorded if self.parts.randomness.none else _known(self._unperturbed[number])

    def _measurement(self, series: _Series) -> Measurement:
        plan, rule = series.plan, series.plan.rule
        count = rule.trials
        used = [self._without(number) for number in range(count)]
        if self.parts.randomness.none:
            used = used[:1]
        return Measurement(
            estimate=rule.estimate(series.n, used, exact=plan.exact),
            perturbed=np.array([_known(trial) for trial in series.trials[:count]]),
            unperturbed=np.array(used),
            steps=sum(trial.steps for trial in series.trials),
            wasted=sum(trial.steps for trial in series.trials[count:]),
        )


def _known(trial: _Trial) -> float:
    assert trial.discounted is not None
    return trial.discounted
