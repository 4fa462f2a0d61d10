"""Jobs, tasks and pieces: what an engine takes and returns, and the worker that does the tasks.

An engine may finish tasks in any order, on any machine, and repeat them after a fault: every random
choice is keyed by the task, so the pieces are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from safemargin.core.records import (
    Array,
    Episode,
    EpisodeFeatures,
    EpisodeKey,
    Measurement,
    Moment,
    MomentFeatures,
)
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.perturbations import Perturbation
from safemargin.criticality.reference import Reference
from safemargin.criticality.rollouts import Runner
from safemargin.environments import EnvironmentSpec, make_simulator
from safemargin.errors import DiagnosisWrong
from safemargin.policies.base import Policy
from safemargin.policies.proxies import Proxy

if TYPE_CHECKING:  # a proof is that of a job
    from safemargin.engines.proof import Proof

BATCH_SIZE = 8
"""Trials that run in lock-step where one simulator can restore another's snapshots."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker of a study needs once, when it starts."""

    environment: EnvironmentSpec
    policy: Policy
    settings: Settings
    proxies: tuple[Proxy, ...]
    way: Literal["snapshot", "replay"]
    randomness: Randomness
    identity: str | None = None
    """The identity of the study's environment; None where there is no study to compare with."""
    perturbation: Perturbation | None = None
    """The one that the settings name, where it is loaded already."""
    reference: Reference | None = None
    """Who acts after the mistakes; None: the agent itself."""
    more: Mapping[tuple[str, str], Perturbation] = field(default_factory=dict)
    """Other mistakes and losses that its tasks may be about, as written, and the perturbations."""
    first_signal: str | None = None
    """The first signal of the study, if that is another one than the settings name."""

    @property
    def proven_signals(self) -> set[str]:
        """Every signal that a proof has to show."""
        return {self.settings.signal, self.first_signal or self.settings.signal} | {
            signal for _, signal in self.more
        }


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """Run one episode, and the following ones of its game where each life is an episode."""

    key: EpisodeKey


@dataclass(frozen=True, slots=True)
class MomentTask:
    """Measure one moment for these n."""

    episode: Episode
    moment: Moment
    n_values: tuple[int, ...]
    earlier_lives: tuple[Array, ...] = ()
    """The actions of the earlier lives of the same game."""
    about: tuple[tuple[str, str], ...] = ()
    """A perturbation with one signal or several, which share the trials; by default the job's."""


@dataclass(frozen=True, slots=True)
class FeaturesTask:
    """Record the policy's hidden layer at a moment, or along a whole episode."""

    episode: Episode
    moment: Moment | None
    """None: every step of the episode."""
    earlier_lives: tuple[Array, ...] = ()


Task = EpisodeTask | MomentTask | FeaturesTask


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tasks of one kind for a worker that does them together, on an accelerator."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A finished part of a task: the episodes of a game, or what was found out at a moment.

    A moment that shows that the job's `way` or `randomness` is wrong gives that error instead, so
    that the tasks before it can still be finished.
    """

    result: (
        list[Episode]
        | tuple[Moment, Measurement | DiagnosisWrong]
        | MomentFeatures
        | EpisodeFeatures
    )
    seconds: float
    about: tuple[str, str] | None = None
    """The perturbation and the signal that were measured; None for those of the job."""
    followed: bool = False
    """Whether the next piece is there already, so that both can be written at once."""


class Engine(Protocol):
    """Runs tasks."""

    workers: int
    """The most tasks that run at the same time."""

    def proof(self) -> Proof:
        """Return what the environment and the policy do in the driver, which workers must do."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Yield the pieces of all tasks in the order in which they finish."""

    def close(self) -> None:
        """Stop the workers and free all resources; unfinished pieces are dropped."""


class Worker:
    """Does the tasks of one job, in any process."""

    def __init__(self, job: Job) -> None:
        first = make_simulator(job.environment.make(), way=job.way)
        siblings = [
            make_simulator(job.environment.make(), way=job.way)
            for _ in range(BATCH_SIZE - 1 if first.portable else 0)
        ]
        if siblings:
            for actor in (job.policy, job.reference):
                if actor is not None:
                    actor.widen(first.env.observation_space, BATCH_SIZE)
        self.runner = Runner(
            first, job.policy, job.settings, job.proxies, siblings, job.perturbation,
            job.reference,
        )  # fmt: skip
        self.randomness = job.randomness
        self._job = job
        self._runners: dict[tuple[tuple[str, str], ...], Runner] = {(): self.runner}

    def run(self, task: Task) -> Iterator[Piece]:
        """Yield the pieces of one task."""
        began = time.perf_counter()
        if isinstance(task, EpisodeTask):
            yield Piece(self.runner.run_game(task.key), time.perf_counter() - began)
            return
        if isinstance(task, FeaturesTask):
            for found in self._features(task):
                yield Piece(found, time.perf_counter() - began)
            return
        try:
            measurer = MomentMeasurer(
                self._runner(task.about),
                task.episode,
                task.moment.step,
                self.randomness,
                earlier_lives=task.earlier_lives,
            )
            if measurer.point.hidden is not None:
                yield Piece(MomentFeatures(task.moment, measurer.point.hidden), 0.0)
            measured = measurer.measure_signals(*task.n_values)
        except DiagnosisWrong as wrong:
            yield Piece((task.moment, wrong), time.perf_counter() - began)
            return
        # The trials of all n run together, so the time is split in proportion to their steps.
        seconds = time.perf_counter() - began
        steps = max(sum(one.steps for of_signal in measured for one in of_signal), 1)
        every = [
            (about, one)
            for about, of_signal in zip(task.about or (None,), measured, strict=True)
            for one in of_signal
        ]
        for (about, one), followed in with_followers(every):
            spent = seconds * one.steps / steps
            yield Piece((task.moment, one), spent, about, followed=followed)

    def _runner(self, about: tuple[tuple[str, str], ...]) -> Runner:
        """Return what runs trials with these mistakes, in the same simulators."""
        if about not in self._runners:
            perturb, signal = about[0]
            self._runners[about] = replace(
                self.runner,
                settings=replace(self.runner.settings, perturb=perturb, signal=signal),
                perturbation=self._job.more[about[0]],
                signals=tuple(signal for _, signal in about),
            )
        return self._runners[about]

    def _features(self, task: FeaturesTask) -> Iterator[MomentFeatures | EpisodeFeatures]:
        episode, moment = task.episode, task.moment
        if moment is None:
            hidden = self.runner.hidden_along(episode, task.earlier_lives)
            yield EpisodeFeatures(episode.key, hidden)
            return
        point = self.runner.go_to(episode, moment.step, task.earlier_lives)
        if point.hidden is not None:
            yield MomentFeatures(moment, point.hidden)

    def close(self) -> None:
        """Close the environments."""
        for simulator in self.runner.simulators:
            simulator.close()


_Item = TypeVar("_Item")


def with_followers(items: Sequence[_Item]) -> Iterator[tuple[_Item, bool]]:
    """Return items that are there already, each with whether another one follows."""
    for number, item in enumerate(items, start=1):
        yield item, number < len(items)


def in_jax(job: Job) -> bool:
    """Whether everything in a study is written in JAX, as engine 'jax' needs it."""
    if job.environment.scheme != "jax":
        return False
    from safemargin.engines.jax import reason_against

    return reason_against(job) is None


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
