"""The agent and the game of a stored study, running again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from stored import Refused, StoredStudy

from safemargin.criticality import Randomness
from safemargin.engines.base import Job, Worker
from safemargin.environments import EnvironmentSpec
from safemargin.policies import load_policy
from safemargin.rollouts import Runner
from safemargin.settings import Settings

Found = TypeVar("Found")


def runner_of(study: StoredStudy, settings: Settings) -> Runner:
    """The study's own agent in its game; another agent of the same name is refused."""
    described = study.about["policy"]
    policy = load_policy(described["source"])
    if policy.identity != described["identity"]:
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
    """What a function finds for each task, in whatever order it is found."""
    with ProcessPoolExecutor(workers) as pool:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
