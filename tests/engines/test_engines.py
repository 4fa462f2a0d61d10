"""One contract for every engine: the same pieces, whatever happens to the workers."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.jobs import PROVEN, Kill, a_job, episodes_of, keys, wait_until, worker_pids
from helpers.paths import TESTS
from helpers.studies import contents, create
from helpers.worlds import make_branching

from safemargin.core.records import Moment
from safemargin.engines import (
    Engine,
    EpisodeTask,
    Job,
    LocalEngine,
    MomentTask,
    check_engine,
    make_engine,
)
from safemargin.errors import EngineFault, EnvironmentFault, InvalidInput, MissingExtra, PolicyFault
from safemargin.policies import load_policy

WAYS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "one process": {"name": "processes", "workers": 1},
    "three processes": {"name": "processes", "workers": 3},
    "ray": {"name": "ray", "workers": 2},
}
APART = ["processes", "ray"]
"""Engines whose workers can die without the driver."""


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """Makes engines that are closed in the end."""
    made: list[Engine] = []

    def make_one(job: Job, name: str, **options: Any) -> Engine:
        if name == "ray":
            request.getfixturevalue("ray_in_use")
        made.append(make_engine(job, name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for engine in made:
        engine.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


# -- the same pieces -----------------------------------------------------------------------------


def test_every_engine_gives_the_same_pieces(make: MakeEngine, way: dict[str, Any]) -> None:
    engine = make(a_job(), **way)
    assert list(engine.run([])) == []
    reference = LocalEngine(a_job())
    expected = episodes_of(reference, 7)
    found = episodes_of(engine, 7)
    assert set(found) == set(expected) == set(keys(7))
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

    expected_measurements = measured(reference)
    assert len(expected_measurements) == 10
    assert measured(engine) == expected_measurements
    assert measured(engine) == expected_measurements  # an engine can be used again


@pytest.mark.parametrize("name", APART)
def test_kill_9_of_workers_in_the_middle_of_a_study(
    request: pytest.FixtureRequest, finished: Path, tmp_path: Path, name: Any
) -> None:
    if name == "ray":
        request.getfixturevalue("ray_in_use")
    kill = Kill(tmp_path / "deaths", 2)
    with create(tmp_path / "study", kill.world()) as study, kill:
        study.collect(natural=14, spread=12, workers=2, engine=name)
    assert contents(tmp_path / "study") == contents(finished)


@pytest.mark.parametrize("name", APART)
def test_idle_workers_that_died_are_replaced(make: MakeEngine, name: str) -> None:
    engine = make(a_job(), name, workers=2)
    assert set(episodes_of(engine, 6)) == set(keys(6))
    pids = worker_pids(engine)
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert set(episodes_of(engine, 6)) == set(keys(6))


# -- errors --------------------------------------------------------------------------------------


class Breaking(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("the wheel came off")


def make_breaking() -> gym.Env[Any, Any]:
    return Breaking(make_branching())


def not_finite(observations: np.ndarray) -> np.ndarray:
    return np.full((len(observations), 2), np.nan)


def test_a_fault_in_a_task_is_told_as_it_was(make: MakeEngine, way: dict[str, Any]) -> None:
    engine = make(a_job(policy=load_policy(not_finite, kind="logits")), **way)
    with pytest.raises(PolicyFault, match="finite"):
        list(engine.run(map(EpisodeTask, keys(3))))
    with pytest.raises(EnvironmentFault, match="wheel") as expected:
        list(LocalEngine(a_job(make_breaking)).run(map(EpisodeTask, keys(1))))
    engine = make(a_job(make_breaking), **way)
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError: the wheel came off") as found:
        list(engine.run(map(EpisodeTask, keys(3))))
    assert str(found.value) == str(expected.value)


def deadly() -> Callable[[], gym.Env[Any, Any]]:
    """Makes an environment that takes its worker's process with it, once that does its tasks."""
    driver = os.getpid()
    steps = 0

    class Deadly(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            nonlocal steps
            steps += os.getpid() != driver
            if steps > PROVEN:
                print("the deadly environment struck", flush=True)
                os._exit(3)
            return super().step(action)

    return lambda: Deadly(make_branching())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("processes", "a worker process died 3 times .*last words: the deadly environment"),
        ("ray", r"a Ray worker died 3 times on the same task \(.*--engine local\) shows more"),
    ],
)
def test_a_task_that_always_kills_its_worker_ends_the_run(
    make: MakeEngine, name: str, words: str
) -> None:
    engine = make(a_job(deadly()), name, workers=2)
    with pytest.raises(EngineFault, match=words):
        list(engine.run(map(EpisodeTask, keys(2))))


def test_a_worker_process_that_cannot_load_the_users_code(
    make: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "passing.py").write_text(
        "from helpers.worlds import make_branching\ndef make():\n    return make_branching()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    passing = importlib.import_module("passing")
    job = a_job(passing.make)
    (tmp_path / "passing.py").unlink()
    with pytest.raises(
        EngineFault,
        match=r"a worker process cannot load the environment or the policy \(ModuleNotFoundError: "
        "No module named 'passing'.*need the code that the study is made of",
    ):
        list(make(job, "processes", workers=1).run(map(EpisodeTask, keys(1))))
    del sys.modules["passing"]


def test_what_no_engine_can_do_is_refused() -> None:
    with pytest.raises(InvalidInput, match="engine 'rey' is unknown; did you mean 'ray'"):
        check_engine("rey")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="engine 'local' is one worker, got 2"):
        check_engine("local", workers=2)
    with pytest.raises(InvalidInput, match="address is for engine 'ray', got engine 'processes'"):
        check_engine(address="auto")
    with pytest.raises(InvalidInput, match="gpus_per_worker is for engine 'ray', got .*'local'"):
        check_engine("local", gpus_per_worker=1)
    for gpus in (-1, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="must be a part of one GPU or a whole number, got"):
            check_engine("ray", gpus_per_worker=gpus)


def test_without_ray_the_answer_is_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "safemargin.engines.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'safemargin\[ray\]'"):
        check_engine("ray")


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", APART)
def test_no_worker_is_left_after_closing(make: MakeEngine, name: str) -> None:
    engine = make(a_job(), name, workers=2)
    pieces = engine.run(map(EpisodeTask, keys(1000)))
    for _ in range(20):  # in the middle
        next(pieces)
    pids = worker_pids(engine)
    assert len(pids) == 2
    engine.close()
    engine.close()
    wait_for_the_end_of(pids)


@pytest.mark.parametrize("name", APART)
def test_workers_leave_when_the_driver_is_killed(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """kill -9 of the driver must not leave processes behind that eat the machine."""
    if name == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'safemargin[ray]'")
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            sys.path[:0] = [sys.argv[1]]
            from helpers.jobs import a_job, keys, worker_pids
            from safemargin.engines import EpisodeTask, make_engine

            engine = make_engine(a_job(), sys.argv[2], workers=2)
            for number, piece in enumerate(engine.run(map(EpisodeTask, keys(1_000_000)))):
                if number == 20:
                    print(*worker_pids(engine), flush=True)
            """
        )
    )
    driver = subprocess.Popen(
        [sys.executable, str(script), str(TESTS), name],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert len(pids) == 2
    wait_for_the_end_of(pids)


def wait_for_the_end_of(pids: list[int]) -> None:
    wait_until(lambda: not any(map(_alive, pids)), "a worker outlived its engine")


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
