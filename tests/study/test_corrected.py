"""Studies whose diagnosis turns out wrong while they are collected: corrected, measured again."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.late import Late, make_alarmed, make_late, right
from helpers.paths import TESTS
from helpers.studies import contents, create, select

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import EnvironmentFault, StudyError, StudyMismatch
from safemargin.study.collection import DiagnosisCorrected

SETTINGS = sm.Settings(gamma=0.8, n_values=(1, 16), trials=24, max_episode_steps=2000)
SEEN = {"after": 260, "row": 7, "steps": 320}
"""Some moments of such a study see randomness, others do not; the doctor looks only at the first
200 steps or so."""
WORLDS = {"random": make_late(**SEEN), "replay": make_alarmed(after=260, steps=320)}
"""What such a study is corrected to: a random world, or one that only a replay gets back to."""


@contextlib.contextmanager
def corrections() -> Iterator[list[str]]:
    """The corrections that a study reports."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", DiagnosisCorrected)
        texts: list[str] = []
        yield texts
        texts += [str(each.message) for each in caught]


def collected(path: Path, make: Any, actions: int = 2, **options: Any) -> sm.Study:
    """A finished study of 8 + 6 moments."""
    settings = options.pop("settings", SETTINGS)
    with create(path, make, policy=right(actions), settings=settings) as study:
        study.collect(8, 6, **{"workers": 1, **options})
    return sm.Study.open(path)


def assert_right(study: sm.Study, world: Any) -> None:
    within = []
    for moment in study.store.moments():
        for measurement in study.store.measurements(moment.episode):
            estimate = measurement.estimate
            error = abs(estimate.mean - world.truth(moment.step, estimate.n, study.settings))
            assert error <= 2.5 * estimate.half_width + 1e-9, (moment, estimate)
            within.append(error <= estimate.half_width + 1e-9)
    assert len(within) == 14 * len(study.settings.n_values)
    assert sum(within) >= 0.85 * len(within)


@pytest.mark.parametrize(
    ("after", "row", "actions"),
    [(50, 1, 2), (150, 1, 2), (300, 1, 2), (900, 1, 2), (300, 2, 20), (300, 8, 20), (300, 12, 20)],
)
def test_randomness_that_comes_late(tmp_path: Path, after: int, row: int, actions: int) -> None:
    world = {"after": after, "row": row, "steps": after + 60, "actions": actions}
    settings = sm.Settings(
        gamma=0.8, n_values=(1, 2, 16), trials=24, exclude_last=1, opening=after - 30
    )
    with corrections() as found:
        study = collected(tmp_path / "study", make_late(**world), actions, settings=settings)
    assert_right(study, Late(**world))
    diagnosis = study.diagnosis
    assert not diagnosis["environment_deterministic"]
    if not found:  # the doctor knew
        assert after <= 150
        return
    assert len(found) == 1
    assert "drew random numbers in a trial with" in found[0]
    assert "taken as random, and everything was measured again" in found[0]
    texts = [each["text"] for each in diagnosis["findings"]]
    assert found[0].endswith(texts[-1])
    assert "the environment is deterministic" not in texts
    assert diagnosis["verdict"].endswith("showed otherwise: the environment is taken as random")


def test_randomness_in_an_episode_far_from_any_moment(tmp_path: Path) -> None:
    world = {"after": 600, "row": 0, "steps": 605}
    with corrections() as found:
        study = collected(tmp_path / "study", make_late(**world))
    assert_right(study, Late(**world))
    assert len(found) == 1
    assert "in episode natural 0 the environment drew random numbers under the policy" in found[0]
    assert not study.diagnosis["environment_deterministic"]


# -- the same tables, however late it is noticed -------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Any]:
    """Copies a study that holds no more than the doctor's diagnosis, and opens the copy."""

    @functools.cache
    def original(world: str) -> Path:
        path = tmp_path_factory.mktemp("begun") / "study"
        create(path, WORLDS[world], policy=right(), settings=SETTINGS).close()
        return path

    def begin(world: str, path: Path) -> sm.Study:
        if not path.exists():
            shutil.copytree(original(world), path)
        return create(path, WORLDS[world], policy=right(), settings=SETTINGS)

    return begin


@pytest.fixture(scope="module")
def corrected(begun: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Returns the path of a finished study that was corrected, and what was reported."""

    @functools.cache
    def make(world: str) -> tuple[Path, str]:
        path = tmp_path_factory.mktemp("corrected") / "study"
        with corrections() as found, begun(world, path) as study:
            study.collect(8, 6, workers=1)
        assert len(found) == 1
        with sm.Study.open(path) as study:
            if world == "replay":
                assert study.diagnosis["way"] == "replay"
                assert "by replay, and everything was measured again" in found[0]
            assert_right(study, WORLDS[world]())
        return path, found[0].partition(": ")[2]

    return make


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("engine", "workers"), [("processes", 2), ("ray", 2)])
def test_any_engine_gives_the_same(
    request: pytest.FixtureRequest,
    world: str,
    begun: Any,
    corrected: Any,
    tmp_path: Path,
    engine: Any,
    workers: int,
) -> None:
    path, text = corrected(world)
    if engine == "ray":
        request.getfixturevalue("ray_in_use")
    with corrections() as found, begun(world, tmp_path / "study") as study:
        study.collect(8, 6, workers=workers, engine=engine)
    assert contents(tmp_path / "study") == contents(path)
    assert [each.partition(": ")[2] for each in found] == [text]


def test_what_is_found_when_a_study_grows(
    world: str, begun: Any, corrected: Any, tmp_path: Path
) -> None:
    with corrections(), begun(world, tmp_path / "study") as study:
        for natural, spread in ((1, 1), (2, 3), (8, 6)):
            study.collect(natural, spread, workers=1)
    assert contents(tmp_path / "study") == contents(corrected(world)[0])


class Stopping:
    """Stops a collection at its pieces with these numbers, counted over all attempts."""

    def __init__(self, every: int) -> None:
        self.every, self.pieces = every, 0

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None:
        self.pieces += 1
        if self.pieces % self.every == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("every", [5, 16])
def test_interrupted_again_and_again(
    world: str, begun: Any, corrected: Any, tmp_path: Path, every: int
) -> None:
    stopping = Stopping(every)
    stops = 0
    with corrections() as found:
        for _ in range(200):
            with begun(world, tmp_path / "study") as study:
                try:
                    study.collect(8, 6, workers=1, progress=stopping)
                    break
                except KeyboardInterrupt:
                    stops += 1
    assert stops
    assert len(found) == 1
    assert contents(tmp_path / "study") == contents(corrected(world)[0])


DRIVER = """
import json, os, signal, sys, warnings
path, tests, workers, at, settings, world = sys.argv[1:]
sys.path[:0] = [tests]
warnings.simplefilter("ignore")
import safemargin as sm
from helpers.late import make_late, right
from helpers.studies import create
from safemargin.study.store import Store

def correct(self, diagnosis, real=Store.correct_diagnosis):
    if at == "-1":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, diagnosis)
    if at == "-2":
        os.kill(os.getpid(), signal.SIGKILL)

Store.correct_diagnosis = correct

class Dying:
    def __init__(self):
        self.left = int(at)
    def stage(self, name, *, total, done): ...
    def advance(self, steps):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

make, chosen = make_late(**json.loads(world)), sm.Settings.from_json(settings)
with create(path, make, policy=right(), settings=chosen) as study:
    study.collect(8, 6, workers=int(workers), progress=Dying())
"""


def test_killed_in_the_middle_of_the_correction(begun: Any, corrected: Any, tmp_path: Path) -> None:
    """kill -9 right before and right after the one transaction, then on with other workers."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    chosen = [SETTINGS.to_json(), json.dumps(SEEN)]
    path = tmp_path / "study"
    begun("random", path).close()
    for workers, at in ((2, 18), (1, -1), (2, -1), (1, -2), (2, 5), (1, 20)):
        options = [str(path), str(TESTS), str(workers), str(at), *chosen]
        command = [sys.executable, str(script), *options]
        done = subprocess.run(command, timeout=600, capture_output=True, env=dict(os.environ))
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        if at == -2:  # dropped, and corrected
            assert select(path, "SELECT * FROM estimates") == []
            assert select(path, "SELECT * FROM costs WHERE n > 0") == []
    with corrections() as found, begun("random", path) as again:
        again.collect(8, 6, workers=2)
    assert found == []  # it was reported when it happened
    assert contents(path) == contents(corrected("random")[0])


def test_games_beyond_those_that_are_kept_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What several workers ran too many of must not decide."""
    world = {"after": 600, "row": 0, "steps": 605}
    with create(tmp_path / "study", make_late(**world), policy=right(), settings=SETTINGS) as study:
        with corrections(), pytest.raises(KeyboardInterrupt):
            study.collect(2, 2, workers=1, progress=Stopping(2))
        assert len(study.store.drew()) == 2
        study.store.drop_games("natural", after=-1)
        kept = study.store.episode_outlines()
        assert not [key for key in study.store.drew() if key in kept]


# -- the way that was asked for ------------------------------------------------------------------


def test_a_way_that_was_asked_for_is_kept(corrected: Any, tmp_path: Path) -> None:
    make = WORLDS["replay"]
    options: dict[str, Any] = {"policy": right(), "settings": SETTINGS}
    with (
        create(tmp_path / "snapshot", make, way="snapshot", **options) as study,
        pytest.raises(EnvironmentFault, match="hides state"),
    ):
        study.collect(8, 6, workers=2)
    with create(tmp_path / "replay", make, way="replay", **options) as study:
        assert study.diagnosis["way"] == study.diagnosis["asked_way"] == "replay"
        study.collect(8, 6, workers=1)  # without a warning
    assert contents(tmp_path / "replay") == contents(corrected("replay")[0])
    with pytest.raises(StudyMismatch, match="not made with --way snapshot .it measures by replay"):
        create(tmp_path / "replay", make, way="snapshot", **options)
    with create(tmp_path / "replay", make, **options) as study:
        assert study.status().estimates_left == 0


def test_a_random_world_by_replay(tmp_path: Path) -> None:
    world = {"after": 20, "row": 1, "steps": 60}
    options: dict[str, Any] = {"policy": right(), "settings": SETTINGS, "way": "replay"}
    with create(tmp_path / "study", make_late(**world), **options) as study:
        study.collect(8, 6, workers=1)
        assert_right(study, Late(**world))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "CartPole-v1", "--way", "replay"]) == 0
    assert "CartPole-v1 can be measured by replay: all 12" in capsys.readouterr().out
    folder = str(tmp_path / "study")
    command = ["collect", "CartPole-v1", "zoo:cartpole", "-o", folder, "--way", "replay"]
    command += ["--natural", "1", "--spread", "1", "--n", "1", "--workers", "1"]
    assert main(command) == 0
    with sm.Study.open(folder) as study:
        assert study.diagnosis["way"] == "replay"
    assert main(["snapshot" if word == "replay" else word for word in command]) == 2
    assert "was not made with --way snapshot" in capsys.readouterr().err


# -- plans ---------------------------------------------------------------------------------------


def test_a_plan_is_corrected_too(begun: Any, corrected: Any, tmp_path: Path) -> None:
    make = WORLDS["random"]
    found = sm.plan_study(None, make, right(), SETTINGS, natural=8, spread=6, workers=1, moments=14)
    with sm.Study.open(corrected("random")[0]) as study:
        trials = study.status().trials
    assert found.forecast.trials.low <= trials <= found.forecast.trials.high
    with begun("random", tmp_path / "study") as study:
        with pytest.raises(KeyboardInterrupt), corrections():
            study.collect(8, 6, workers=1, progress=Stopping(15))
        before = contents(tmp_path / "study")
        assert study.diagnosis["environment_deterministic"]
        with pytest.raises(StudyError, match="`safemargin collect` will correct the study in"):
            sm.plan_study(
                study.path, make, right(), SETTINGS, natural=8, spread=6, workers=1, moments=40
            )
        assert contents(tmp_path / "study") == before
