"""The agent and the game of a stored study, running again."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stored import Refused, StoredStudy

from safemargin.core.settings import Settings
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.estimation import Randomness
from safemargin.criticality.rollouts import Runner
from safemargin.engines.base import Job, Worker
from safemargin.environments import EnvironmentSpec, Snapshot
from safemargin.policies import load_policy

Found = TypeVar("Found")


def runner_of(study: StoredStudy, settings: Settings, other: Path | None = None) -> Runner:
    """Return the study's own agent in its game; another agent of the same name is refused.

    `other`: a file with an agent that plays instead.
    """
    described = study.about["policy"]
    policy = load_policy(described["source"] if other is None else str(other))
    if other is None and policy.identity != described["identity"]:
        raise Refused(f"the study in {study.folder} was made with another {policy.description}")
    return Worker(
        Job(
            environment=EnvironmentSpec.parse(study.about["environment"]["name"]),
            policy=policy,
            settings=settings,
            proxies=(),
            way="snapshot",
            randomness=Randomness(environment=False, policy=False),
        )
    ).runner


def in_processes(
    function: Callable[..., Found], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Found]:
    """Yield the results of a function for each task, in the order in which they finish."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_parent)
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
    except BaseException:  # also Ctrl-C: nobody wants the tasks that run
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        pool.shutdown(cancel_futures=True)  # waits until they are gone
        raise
    pool.shutdown()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def in_a_sentence(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Print what was refused, or that somebody stopped the command."""
    try:
        yield
    except Refused as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        kept = "stopped; what is finished is kept, and the same command continues from there"
        parser.exit(130, f"{parser.prog}: {kept}\n")


class OwnWay:
    """How the agent would continue alone, kept while it does so that it is not played twice."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.leave()

    def leave(self) -> None:
        """Forget it, because another action was taken."""
        self._rewards: deque[float] = deque()
        self._states: deque[bytes] = deque()
        self._end: Snapshot | None = None

    def follow(self) -> None:
        """Note that the agent took its own next step."""
        if self._end is not None:
            self._rewards.popleft()
            self._states.popleft()

    def state_index(self) -> StateIndex:
        """Return an index of the states on the way, for trials that come back to it."""
        self._look_ahead()
        state_index = StateIndex(self._runner.settings.horizon)
        state_index.add_finished(
            self._states, Rollout([(each,) for each in self._rewards], finished=True)
        )
        return state_index

    def _look_ahead(self) -> None:
        simulator = self._runner.simulator
        here = simulator.save()
        simulator.restore(here if self._end is None else self._end)
        while not simulator.ended and len(self._rewards) < self._runner.settings.horizon:
            rows, _ = self._runner.scores([simulator.observation], [None])
            step = simulator.step(self._runner.choose(rows[0], None, simulator.mask))
            self._rewards.append(step.reward)
            self._states.append(simulator.digest())
        self._end = simulator.save()
        simulator.restore(here)
