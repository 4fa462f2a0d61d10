"""One contract for every engine: the same pieces, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import always_first, make_branching

from safemargin.criticality import Randomness
from safemargin.engines import Engine, EpisodeTask, Job, LocalEngine, MomentTask, ProcessEngine
from safemargin.environments import EnvironmentSpec
from safemargin.errors import EngineFault, PolicyFault
from safemargin.policies import load_policy
from safemargin.proxies import proxies_for
from safemargin.records import Episode, EpisodeKey, Moment
from safemargin.settings import Settings

POLICY = load_policy(always_first, kind="logits")
MAKERS: dict[str, Callable[[Job], Engine]] = {
    "local": LocalEngine,
    "one process": lambda job: ProcessEngine(job, 1),
    "three processes": lambda job: ProcessEngine(job, 3),
}


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


@pytest.fixture(params=MAKERS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = MAKERS[request.param](a_job())
    yield made
    made.close()


def test_every_engine_gives_the_same_pieces(engine: Engine) -> None:
    reference = LocalEngine(a_job())
    expected = episodes_of(reference, 7)
    found = episodes_of(engine, 7)
    assert set(found) == set(expected)
    for key, episode in expected.items():
        assert found[key].fingerprint == episode.fingerprint

    tasks = [MomentTask(expected[key], Moment(key, 3), (1, 8)) for key in keys(5)]

    def measured(one: Engine) -> dict[Any, Any]:
        return {
            (piece.result[0].episode, piece.result[1].estimate.n): (  # type: ignore[index]
                piece.result[1].estimate,  # type: ignore[index]
                piece.result[1].perturbed.tolist(),  # type: ignore[index]
            )
            for piece in one.run(tasks)
        }

    assert measured(engine) == measured(reference)
    assert len(measured(engine)) == 10  # and an engine can be used again


def test_no_tasks_no_pieces(engine: Engine) -> None:
    assert list(engine.run([])) == []


def test_a_fault_in_a_task_is_told_as_it_was() -> None:
    def broken(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), 2), np.nan)

    job = a_job(policy=load_policy(broken, kind="logits"))
    for make in MAKERS.values():
        engine = make(job)
        with pytest.raises(PolicyFault, match="finite"):
            list(engine.run(map(EpisodeTask, keys(3))))
        engine.close()


def test_killed_workers_are_replaced_and_nothing_is_lost() -> None:
    engine = ProcessEngine(a_job(), 2)
    found: list[EpisodeKey] = []
    for piece in engine.run(map(EpisodeTask, keys(40))):
        assert isinstance(piece.result, list)
        found += [episode.key for episode in piece.result]
        if len(found) in (3, 11, 20):
            os.kill(engine._workers[0].process.pid, signal.SIGKILL)
    engine.close()
    assert sorted(set(found)) == keys(40)


def make_deadly() -> Any:
    """An environment that takes its whole process with it."""
    env = make_branching()
    parent = int(os.environ["SAFEMARGIN_TEST_PARENT"])

    def step(action: int) -> Any:
        if os.getpid() != parent:
            print("the deadly environment struck", flush=True)
            os._exit(3)

    env.step = step  # type: ignore[assignment,method-assign]
    return env


def test_a_task_that_always_kills_its_worker_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAFEMARGIN_TEST_PARENT", str(os.getpid()))
    engine = ProcessEngine(a_job(make_deadly), 2)
    with pytest.raises(EngineFault, match="died 3 times .*last words: the deadly environment"):
        list(engine.run(map(EpisodeTask, keys(2))))
    engine.close()


def test_workers_leave_when_the_driver_is_killed(tmp_path: Path) -> None:
    """kill -9 of the driver must not leave processes behind that eat the machine."""
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            sys.path[:0] = [sys.argv[1]]
            from test_engines import a_job, keys
            from safemargin.engines import EpisodeTask, ProcessEngine

            engine = ProcessEngine(a_job(), 2)
            for piece in engine.run(map(EpisodeTask, keys(1_000_000))):
                print(*(worker.process.pid for worker in engine._workers), flush=True)
            """
        )
    )
    driver = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    workers: list[int] = []
    while len(workers) < 2:
        workers = [int(pid) for pid in driver.stdout.readline().split()]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.2)


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
