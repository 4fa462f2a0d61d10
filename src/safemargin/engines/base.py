"""What an engine is given and what it gives back.

An engine may finish tasks in any order, on any machine, and more than once after a fault:
every random choice is keyed by the task, so the pieces are the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from safemargin.criticality import MomentMeasurer, Randomness
from safemargin.environments import EnvironmentSpec, make_simulator
from safemargin.policies.base import Policy
from safemargin.proxies import Proxy
from safemargin.records import Array, Episode, EpisodeKey, Measurement, Moment
from safemargin.rollouts import Runner
from safemargin.settings import Settings


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

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """The pieces of all tasks, in whatever order they are finished."""

    def close(self) -> None:
        """Stop and free everything; pieces in flight are dropped."""


class Worker:
    """Does the tasks of one job, in whichever process it lives."""

    def __init__(self, job: Job) -> None:
        simulator = make_simulator(job.environment.make(), way=job.way)
        self.runner = Runner(simulator, job.policy, job.settings, job.proxies)
        self.randomness = job.randomness

    def run(self, task: Task) -> Iterator[Piece]:
        """The pieces of one task, each as soon as it is finished."""
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
        for n in task.n_values:
            measurement = measurer.measure(n)
            now = time.perf_counter()
            yield Piece((task.moment, measurement), now - began)
            began = now

    def close(self) -> None:
        """Close the environment."""
        self.runner.simulator.close()
