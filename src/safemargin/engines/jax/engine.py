"""The engine `jax`: a study's episodes, replays and trials as one compiled program."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from safemargin.core.jax_library import device_kind, devices, load_jax
from safemargin.core.records import Episode, EpisodeKey
from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.engines.base import EpisodeTask, FeaturesTask, Job, MomentTask, Piece, Task, Worker
from safemargin.engines.jax.draws import PolicyDraws, Schedule, schedule_of
from safemargin.engines.jax.group import Run
from safemargin.engines.jax.memory import groups_that_fit
from safemargin.engines.jax.moments import measured
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.pool import Clock, Pool
from safemargin.engines.jax.program import ENDED, TERMINATED, Program
from safemargin.engines.jax.supported import parts_in_jax
from safemargin.engines.proof import Proof, prove
from safemargin.environments.functional.keys import key_of_seed
from safemargin.policies.proxies import proxy_values


class JaxEngine:
    """Runs tasks on the accelerators of this process, or on its processors."""

    def __init__(self, job: Job, *, device: str | None = None, groups: int | None = None) -> None:
        """`device` is 'cpu' or 'gpu'; `groups` of lanes run at a time on each, if there is room."""
        load_jax("engine 'jax'")
        self._devices = devices(device)
        functional, self._policy = parts_in_jax(job)
        self.workers = len(self._devices)
        self._job = job
        self._program = Program(functional, self._policy, job.settings, device_kind())
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

    # -- episodes ------------------------------------------------------------------------------

    def pool(self) -> Pool:
        """Make the lanes."""
        groups = self._groups or groups_that_fit(self._program, self._devices)
        return Pool(self._program, self._devices, groups)

    def _episodes(self, keys: Iterable[EpisodeKey]) -> Iterator[Piece]:
        """Run games; every episode is a game of its own."""
        pool, left = self.pool(), iter(keys)
        done: deque[tuple[EpisodeKey, int, int, Run]] = deque()
        clock, more = Clock(), True
        while more or pool.busy:
            while more and pool.waiting < self._program.size:
                some = list(itertools.islice(left, self._program.size))
                more = len(some) == self._program.size
                if some:
                    self._add_episodes(pool, some, done)
            for run in pool.turn():
                run.finished(run)
            while done:
                game = self._episode(*done.popleft())
                yield Piece([game], clock.lap())
        self.halved += pool.halved

    def _moments(self, tasks: Iterable[MomentTask]) -> Iterator[Piece]:
        """Measure moments."""
        pool, clock = self.pool(), Clock()
        for trials in measured(self._parts, pool, tasks):
            measurements = trials.measurements()
            seconds, steps = clock.lap(), sum(each.steps for each in measurements)
            for each in measurements:
                share = each.steps / max(steps, 1)
                yield Piece((trials.moment, each), seconds * share)
        self.halved += pool.halved

    def _add_episodes(
        self,
        pool: Pool,
        keys: Sequence[EpisodeKey],
        done: deque[tuple[EpisodeKey, int, int, Run]],
    ) -> None:
        settings, parts = self._job.settings, self._parts
        seeds = [environment_seed(settings.seed, *key.game_keys) for key in keys]
        runs = []
        for slot, (key, seed) in enumerate(zip(keys, seeds, strict=True)):
            opening = self._opening(key)
            draws = None
            if not parts.policy_actions.deterministic:
                draws = PolicyDraws(
                    lambda key=key: stream(  # type: ignore[misc]
                        settings.seed, Purpose.EPISODE_POLICY, *key.stream_keys
                    ),
                    parts.policy_actions,
                    parts.policy_masked,
                    0 if opening is None else len(opening),
                )

            def finished(
                run: Run, key: EpisodeKey = key, seed: int = seed, opening: Any = opening
            ) -> None:
                done.append((key, seed, 0 if opening is None else len(opening), run))

            limit, key_words = settings.max_episode_steps, key_of_seed(seed)
            runs.append(Run(slot, limit, key_words, opening, finished, draws, keep=True))
        pool.add(pool.starts(seeds), runs)

    def _opening(self, key: EpisodeKey) -> Schedule | None:
        limit = self._job.settings.opening
        if limit == 0:
            return None
        parts = self._parts
        generator = stream(self._job.settings.seed, Purpose.OPENING, *key.game_keys)
        width = parts.random_actions.width
        uniforms = generator.random((int(generator.integers(limit + 1)), width))
        return schedule_of(uniforms, parts.random_actions, masked=parts.masked)

    def _episode(self, key: EpisodeKey, seed: int, opening: int, run: Run) -> Episode:
        self._parts.check(run, f"episode {key}")
        rewards, scores, actions = run.all_kept()
        terminated = bool(run.code & TERMINATED)
        ended = bool(run.code & ENDED)
        return Episode(
            key=key,
            seed=seed,
            opening=min(opening, run.steps),
            actions=actions.astype(np.int64) if self._program.discrete else actions,
            rewards=rewards.astype(np.float64),
            scores=scores,
            proxies={
                proxy.name: proxy_values(proxy, scores, action_space=self._program.space)
                for proxy in self._job.proxies
            },
            terminated=terminated,
            truncated=ended and not terminated,
            cut=not ended,
        )
