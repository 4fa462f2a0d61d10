"""What an engine is given and what it gives back.

An engine may finish tasks in any order, on any machine, and more than once after a fault:
every random choice is keyed by the task, so the pieces are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from safemargin.core.records import Array, Episode, EpisodeKey, Measurement, Moment
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.rollouts import Runner
from safemargin.environments import EnvironmentSpec, make_simulator
from safemargin.policies.base import Policy
from safemargin.policies.proxies import Proxy

BATCH_SIZE = 8
"""Trials that run in lock-step where snapshots can go from one simulator to another."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker of a study needs to know once."""

    environment: EnvironmentSpec
    policy: Policy
    settings: Settings
    proxies: tuple[Proxy, ...]
    way: Literal["snapshot", "replay"]
    randomness: Randomness


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """Run one episode, and those that follow in the same game where each life is one."""

    key: EpisodeKey


@dataclass(frozen=True, slots=True)
class MomentTask:
    """Measure one moment for some n."""

    episode: Episode
    moment: Moment
    n_values: tuple[int, ...]
    earlier_lives: tuple[Array, ...] = ()
    """The actions of the lives before the episode's own, in the same game."""


Task = EpisodeTask | MomentTask


@dataclass(frozen=True, slots=True)
class Piece:
    """One finished piece of a task: the episodes of a game, or a moment measured for one n."""

    result: list[Episode] | tuple[Moment, Measurement]
    seconds: float


class Engine(Protocol):
    """Runs tasks."""

    workers: int
    """How many tasks it may do at the same time."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """The pieces of all tasks, in whatever order they are finished."""

    def close(self) -> None:
        """Stop and free everything; pieces in flight are dropped."""


class Worker:
    """Does the tasks of one job, in whichever process it lives."""

    def __init__(self, job: Job) -> None:
        first = make_simulator(job.environment.make(), way=job.way)
        siblings = [
            make_simulator(job.environment.make(), way=job.way)
            for _ in range(BATCH_SIZE - 1 if first.portable else 0)
        ]
        if siblings:
            job.policy.widen(first.env.observation_space, BATCH_SIZE)
        self.runner = Runner(first, job.policy, job.settings, job.proxies, siblings)
        self.randomness = job.randomness

    def run(self, task: Task) -> Iterator[Piece]:
        """The pieces of one task."""
        began = time.perf_counter()
        if isinstance(task, EpisodeTask):
            yield Piece(self.runner.run_game(task.key), time.perf_counter() - began)
            return
        measurer = MomentMeasurer(
            self.runner,
            task.episode,
            task.moment.step,
            self.randomness,
            earlier_lives=task.earlier_lives,
        )
        measurements = measurer.measure(*task.n_values)
        # The trials of all n run side by side: each n gets its share of the time.
        seconds = time.perf_counter() - began
        steps = sum(measurement.steps for measurement in measurements)
        for measurement in measurements:
            yield Piece((task.moment, measurement), seconds * measurement.steps / max(steps, 1))

    def close(self) -> None:
        """Close the environments."""
        for simulator in self.runner.simulators:
            simulator.close()


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
