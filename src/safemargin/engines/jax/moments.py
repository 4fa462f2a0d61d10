"""Going to moments by replay, a group of them at a time, and running their trials."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from safemargin.engines.base import MomentTask
from safemargin.engines.jax.draws import Schedule, Schedules
from safemargin.engines.jax.group import Group
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.pool import Pool
from safemargin.engines.jax.program import ENDED
from safemargin.engines.jax.runs import Bank, Finished, Runs, Taken
from safemargin.engines.jax.trials import MomentTrials
from safemargin.environments.functional.keys import key_of_seed


def measured(parts: Parts, pool: Pool, tasks: Iterable[MomentTask]) -> Iterator[list[MomentTrials]]:
    """Yield the trials of moments once they are complete, those together that were so together."""
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
        done = []
        for runs in pool.turn():
            trials: MomentTrials = runs.owner
            if trials.complete:
                done.append(trials)
            elif not trials.waiting:
                pool.add(trials.next_runs())
        if done:
            yield done
        if replays is not None and replays.land():
            for trials in replays.trials():
                pool.add(trials.next_runs())
            replays = None


class _Replays:
    """Replays of the episodes of some moments, one in each lane of a group."""

    def __init__(self, parts: Parts, pool: Pool, tasks: list[MomentTask]) -> None:
        self._parts, self._pool, self._tasks = parts, pool, tasks
        self._begin()

    def _begin(self) -> None:
        self._group: Group = self._pool.one_more()
        self._bank = self._pool.starts([task.episode.seed for task in self._tasks])
        runs = Runs(
            bank=self._bank,
            slots=np.arange(len(self._tasks), dtype=np.int32),
            limits=np.array([task.moment.step for task in self._tasks]),
            finished=self._refuse_ends,
            keys=np.stack([key_of_seed(task.episode.seed) for task in self._tasks]),
            schedule=Schedules.of([Schedule(self._actions(task)) for task in self._tasks]),
            taken=self._compare,
        )
        self._group.begin(runs, np.arange(len(runs)))

    def _actions(self, task: MomentTask) -> np.ndarray:
        actions = task.episode.actions[: task.moment.step]
        return actions.astype(np.int32) if self._parts.program.discrete else actions

    def launch(self) -> None:
        """Begin a call."""
        try:
            self._group.launch(self._bank.on(self._parts.program))
        except RuntimeError as error:
            self._smaller(error)

    def land(self) -> bool:
        """Wait for the call; whether all moments have been reached."""
        if self._group.flying is None:
            return False
        try:
            landed = self._group.land()
        except RuntimeError as error:
            self._smaller(error)
            return False
        landed.deliver()
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

    def _compare(self, taken: Taken) -> None:
        """Raise EnvironmentFault unless the steps of replays gave what was recorded."""
        for row, number in enumerate(taken.numbers.tolist()):
            episode, since = self._tasks[number].episode, int(taken.since[row])
            count = int(taken.count[row])
            now = slice(since, since + count)
            same = taken.rewards[row, :count] == episode.rewards[now]
            scores = taken.scores[row, :count] == episode.scores[now]
            same &= scores.all(axis=tuple(range(1, scores.ndim)))
            if not same.all():
                raise self._parts.diverged(episode, since + int(np.argmin(same)))

    def _refuse_ends(self, over: Finished) -> None:
        """Raise EnvironmentFault if the episode of a replay ended before its moment."""
        for row, number in enumerate(over.numbers.tolist()):
            task, steps = self._tasks[number], int(over.steps[row])
            if steps < task.moment.step or over.codes[row] & ENDED:
                raise self._parts.diverged(task.episode, steps)
