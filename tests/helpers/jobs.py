"""Jobs for engines, and workers that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from helpers.studies import POLICY
from helpers.worlds import make_branching
from safemargin.core.records import Episode, EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.engines import (
    Engine,
    EpisodeTask,
    Job,
)
from safemargin.environments import EnvironmentSpec
from safemargin.policies.proxies import proxies_for


def a_job(make_env: Any = make_branching, policy: Any = POLICY) -> Job:
    return Job(
        environment=EnvironmentSpec.parse(make_env),
        policy=policy,
        settings=Settings(trials=20),
        proxies=proxies_for("logits"),
        way="snapshot",
        randomness=Randomness(environment=False, policy=False),
    )


def keys(count: int) -> list[EpisodeKey]:
    return [EpisodeKey("natural", index) for index in range(count)]


def episodes_of(engine: Engine, count: int) -> dict[EpisodeKey, Episode]:
    return {
        episode.key: episode
        for piece in engine.run(map(EpisodeTask, keys(count)))
        for episode in piece.result
        if isinstance(episode, Episode)
    }


def worker_pids(engine: Any) -> list[int]:
    """The processes of an engine's workers; those of Ray tell it after what they are doing."""
    if hasattr(engine, "_workers"):
        return [worker.process.pid for worker in engine._workers]
    import ray

    asked = [actor.handle.__ray_call__.remote(lambda _: os.getpid()) for actor in engine._actors]
    pids: list[int] = ray.get(asked)
    return pids


class Kill:
    """Kills workers in the middle of a task, once each has told that it has come there."""

    def __init__(self, folder: Path, deaths: int) -> None:
        self.folder, self.deaths = folder, deaths
        folder.mkdir()

    def world(self) -> Callable[[], gym.Env[Any, Any]]:
        """Like make_branching, but a few workers lie down in their 150th step and wait."""
        folder, deaths, driver = self.folder, self.deaths, os.getpid()
        steps = 0

        class Waiting(gym.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:
                nonlocal steps
                steps += os.getpid() != driver
                if steps == 150:
                    for number in range(deaths):
                        try:
                            with open(folder / str(number), "x") as file:
                                file.write(str(os.getpid()))
                        except FileExistsError:
                            continue
                        time.sleep(60)
                return super().step(action)

        return lambda: Waiting(make_branching())

    def __enter__(self) -> Kill:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self) -> None:
        for number in range(self.deaths):
            while not (self.folder / str(number)).exists():
                time.sleep(0.01)
            time.sleep(0.05)  # it is written
            os.kill(int((self.folder / str(number)).read_text()), signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        assert len(list(self.folder.iterdir())) == self.deaths
