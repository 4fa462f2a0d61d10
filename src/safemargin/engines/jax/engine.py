"""The engine `jax`: a study's episodes, replays and trials as one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from safemargin.core.jax_library import devices, load_jax
from safemargin.core.records import EpisodeKey
from safemargin.engines.base import (
    EpisodeTask,
    FeaturesTask,
    Job,
    MomentTask,
    Piece,
    Task,
    Worker,
    with_followers,
)
from safemargin.engines.jax.episodes import Games
from safemargin.engines.jax.memory import groups_that_fit
from safemargin.engines.jax.moments import measured
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.pool import Clock, Pool
from safemargin.engines.jax.program import Program
from safemargin.engines.jax.supported import parts_in_jax
from safemargin.engines.proof import Proof, prove


class JaxEngine:
    """Runs tasks on the accelerators of this process, or on its processors."""

    def __init__(self, job: Job, *, device: str | None = None, groups: int | None = None) -> None:
        """`device` is 'cpu' or 'gpu'; `groups` of lanes run at a time, if there is room."""
        load_jax("engine 'jax'")
        every = devices(device)
        functional, policy = parts_in_jax(job)
        self.workers = len(every)
        self._job = job
        self._program = Program(functional, policy, job.settings, every)
        self._parts = Parts(job, self._program)
        self._groups = groups
        self._proof: Proof | None = None
        self._worker: Worker | None = None
        self.halved = 0
        """How often a batch was halved for lack of memory."""

    def proof(self) -> Proof:
        """Return what the environment and the policy do one step at a time."""
        if self._proof is None:
            self._proof = prove(self._job, driver=True)
        return self._proof

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Yield the pieces as they finish."""
        self.proof()
        every = iter(tasks)
        for first in every:
            same = itertools.chain([first], every)
            if isinstance(first, FeaturesTask):
                self._worker = self._worker or Worker(self._job)
                for task in same:
                    yield from self._worker.run(task)
            elif isinstance(first, EpisodeTask):
                yield from self._episodes(task.key for task in same)  # type: ignore[union-attr]
            else:
                yield from self._moments(same)  # type: ignore[arg-type]

    def close(self) -> None:
        """Free what was used."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def pool(self) -> Pool:
        """Make the lanes."""
        return Pool(self._parts, self._groups or groups_that_fit(self._program))

    def _episodes(self, keys: Iterable[EpisodeKey]) -> Iterator[Piece]:
        """Run episodes."""
        pool, left = self.pool(), iter(keys)
        clock, more = Clock(), True
        while more or pool.busy:
            while more and pool.waiting < self._program.size:
                some = list(itertools.islice(left, self._program.size))
                more = len(some) == self._program.size
                if some:
                    pool.add(Games(self._parts, pool, some).runs)
            games = [game for runs in pool.turn() for game in runs.owner.finished()]
            seconds = clock.lap() / max(len(games), 1)
            for game, followed in with_followers(games):
                yield Piece([game], seconds, followed=followed)
        self.halved += pool.halved

    def _moments(self, tasks: Iterable[MomentTask]) -> Iterator[Piece]:
        """Measure moments."""
        pool, clock = self.pool(), Clock()
        for some in measured(self._parts, pool, tasks):
            found = [(trials.moment, each) for trials in some for each in trials.measurements()]
            steps = np.array([each.steps for _, each in found])
            seconds = clock.lap() * steps / max(steps.sum(), 1)
            spent = zip(found, seconds.tolist(), strict=True)
            for (result, its), followed in with_followers(list(spent)):
                yield Piece(result, its, followed=followed)
        self.halved += pool.halved
