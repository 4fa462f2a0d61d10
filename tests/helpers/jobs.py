"""Jobs for engines, and workers that are stopped or killed at a chosen point."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from helpers.studies import POLICY, estimates_in
from helpers.worlds import make_branching
from safemargin.core.records import Episode, EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.engines import Engine, EpisodeTask, Job
from safemargin.engines.proof import TRIAL_STEPS
from safemargin.environments import EnvironmentSpec
from safemargin.policies.proxies import proxies_for

PROVEN = TRIAL_STEPS + 100
"""After this many steps of its environments, a worker has proven itself and does its tasks."""


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
    """The process ids of an engine's workers; Ray's answer once they have finished their tasks."""
    if hasattr(engine, "_workers"):
        return [worker.process.pid for worker in engine._workers]
    import ray

    asked = [actor.handle.__ray_call__.remote(lambda _: os.getpid()) for actor in engine._actors]
    pids: list[int] = ray.get(asked)
    return pids


def wait_until(condition: Callable[[], object], otherwise: str, *, seconds: float = 600) -> None:
    """Wait for a condition; fail with `otherwise` if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


class Kill:
    """Kills workers in the middle of a task, each once it has reported that it is there."""

    def __init__(self, folder: Path, deaths: int) -> None:
        self.reports = [folder / str(number) for number in range(deaths)]
        self._killed: list[int] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        folder.mkdir()

    def world(
        self, make: Callable[[], gym.Env[Any, Any]] = make_branching
    ) -> Callable[[], gym.Env[Any, Any]]:
        """Make environments in which a few workers stop in a task, to be killed."""
        reports, driver = self.reports, os.getpid()
        steps = 0

        class Waiting(gym.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:
                nonlocal steps
                steps += os.getpid() != driver
                if steps == PROVEN + 150:
                    for report in reports:
                        try:
                            file = open(report, "x")  # noqa: SIM115 — closed below
                        except FileExistsError:
                            continue
                        with file:
                            file.write(f"{os.getpid()}\n")
                        threading.Event().wait(600)
                        raise RuntimeError("nobody killed this worker")
                return super().step(action)

        return lambda: Waiting(make())

    def __enter__(self) -> Kill:
        self._thread.start()
        return self

    def _watch(self) -> None:
        for report in self.reports:
            wait_until(
                lambda report=report: report.exists() and report.read_text().endswith("\n"),
                "no worker came to where it is to be killed",
            )
            pid = int(report.read_text())
            os.kill(pid, signal.SIGKILL)
            self._killed.append(pid)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._thread.join(600)
            assert len(self._killed) == len(self.reports)


ENOUGH = 12
"""Workers of a gated environment stop once their study holds this many estimates."""


class Gated(gym.Wrapper[Any, Any, Any, Any]):
    """Stops its worker from the study's 12th estimate on, until the file `open` exists."""

    def __init__(self, env: gym.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self.folder = folder

    def reset(self, **given: Any) -> Any:
        folder = Path(self.folder)
        if estimates_in(folder / "study") >= ENOUGH:
            wait_until((folder / "open").exists, "nobody opened the gate")
        return self.env.reset(**given)


def make_gated(folder: str) -> gym.Env[Any, Any]:
    """Like make_branching, for a study in `folder`/study that is to be interrupted halfway."""
    return Gated(make_branching(), folder)
