"""Going to moments by replay, a group of them at a time, and running their trials."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from safemargin.engines.base import MomentTask
from safemargin.engines.jax.draws import Schedule
from safemargin.engines.jax.group import Group, Run
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.pool import Bank, Pool
from safemargin.engines.jax.program import ENDED
from safemargin.engines.jax.trials import MomentTrials
from safemargin.environments.functional.keys import key_of_seed


def measured(parts: Parts, pool: Pool, tasks: Iterable[MomentTask]) -> Iterator[MomentTrials]:
    """Yield the trials of each moment once they are complete."""
    left, more = iter(tasks), True
    replays: _Replays | None = None
    while more or replays is not None or pool.busy:
        # The next moments are gone to while lanes are still full with trials of the last ones.
        if replays is None and more and pool.waiting < parts.program.size:
            some = list(itertools.islice(left, parts.program.size))
            more = len(some) == parts.program.size
            replays = _Replays(parts, pool, some) if some else None
        if replays is not None:
            replays.launch()
        for run in pool.turn():
            run.finished(run)
            trials: MomentTrials = run.owner
            if trials.complete:
                yield trials
            else:
                pool.add(trials.bank, trials.next_runs())
        if replays is not None and replays.land():
            for trials in replays.trials():
                pool.add(trials.bank, trials.next_runs())
            replays = None


class _Replays:
    """Replays of the episodes of some moments, one in each lane of a group."""

    def __init__(self, parts: Parts, pool: Pool, tasks: list[MomentTask]) -> None:
        self._parts, self._pool, self._tasks = parts, pool, tasks
        self._begin()

    def _begin(self) -> None:
        self._group: Group = self._pool.one_more()
        self._bank = self._pool.starts([task.episode.seed for task in self._tasks])
        self._group.begin([self._run(slot, task) for slot, task in enumerate(self._tasks)])

    def _run(self, slot: int, task: MomentTask) -> Run:
        until = task.moment.step
        actions = task.episode.actions[:until]
        given = actions.astype(np.int32) if self._parts.program.discrete else actions

        def finished(run: Run) -> None:
            self._compare(task, run)

        key = key_of_seed(task.episode.seed)
        return Run(slot, until, key, Schedule(given), finished, keep=True)

    def launch(self) -> None:
        """Begin a call."""
        try:
            self._group.launch(self._bank.on(self._parts.program, self._group.device))
        except RuntimeError as error:
            self._smaller(error)

    def land(self) -> bool:
        """Wait for the call; whether all moments have been reached."""
        if self._group.flying is None:
            return False
        try:
            runs = self._group.land()
        except RuntimeError as error:
            self._smaller(error)
            return False
        for run in runs:
            run.finished(run)
        return not self._group.busy

    def trials(self) -> Iterator[MomentTrials]:
        """Yield the trials of each moment, which begin where its lane is now."""
        program, lanes = self._parts.program, self._group.lanes
        assert lanes is not None
        bank, masks = Bank(lanes.at), None
        if self._parts.masked:
            masks = np.asarray(program.legal(lanes.at.state)).reshape(program.size, -1)
        for slot, task in enumerate(self._tasks):
            mask = None if masks is None else masks[slot]
            yield MomentTrials(self._parts, task, bank, slot=slot, mask=mask)

    def _smaller(self, error: Exception) -> None:
        """Begin again, with half of the lanes of trials."""
        self._pool.halve(error)
        self._begin()

    def _compare(self, task: MomentTask, run: Run) -> None:
        """Raise EnvironmentFault unless a replay gave what was recorded."""
        episode, until = task.episode, task.moment.step
        if until == 0:
            return
        rewards, scores, _ = run.all_kept()
        same = rewards == episode.rewards[: len(rewards)]
        same &= (scores == episode.scores[: len(scores)]).reshape(len(scores), -1).all(axis=1)
        if not same.all() or run.steps < until or run.code & ENDED:
            raise self._parts.diverged(episode, int(np.argmin(same)))
