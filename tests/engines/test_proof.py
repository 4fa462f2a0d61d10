"""A worker that runs another environment or policy than the driver is refused, with the reason."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.jobs import a_job, episodes_of, keys, worker_pids
from helpers.studies import contents, create

import safemargin as sm
from safemargin.core.records import Episode
from safemargin.engines import Engine, Job, LocalEngine, make_engine
from safemargin.engines.proof import TRIAL_RUNS, TRIAL_STEPS, Proof, Witness, prove
from safemargin.errors import EngineFault, StudyMismatch
from safemargin.policies import load_policy
from safemargin.policies.proxies import Proxy

MODULE = """
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
from helpers.worlds import always_first, make_chain

LIMIT = 30

def limit():
    if Path("limit.txt").exists():
        return int(Path("limit.txt").read_text())
    return int(os.environ.get("NAMESAKE_LIMIT", LIMIT))

class Limited(gym.Wrapper):
    steps = 0

    def reset(self, **given):
        self.steps = 0
        return self.env.reset(**given)

    def step(self, action):
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated or self.steps >= limit(), info

class Paid(gym.Wrapper):
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        bonus = float(os.environ.get("NAMESAKE_BONUS", 0)) if action else 0
        return observation, reward + bonus, *rest

def make():
    return Limited(make_chain())

def make_distant():
    return gym.wrappers.TimeLimit(make_chain(), 100 * limit())

def make_paid():
    return Paid(make_chain())

def make_for(length):
    return gym.wrappers.TimeLimit(make_chain(), length)

def policy(observations):
    gain = np.float32(os.environ.get("NAMESAKE_GAIN", "1"))
    return gain * always_first(observations)

def doubt(scores, history, n):
    return float(os.environ.get("NAMESAKE_DOUBT", 0)) + scores[0]
"""
"""Code of a user's that reads variables, a file in the working folder, and its own constants."""

Start = Callable[..., Engine]


@pytest.fixture
def namesake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The user's module, which any worker finds in a file."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "namesake.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a file that is edited soon
    yield importlib.import_module("namesake")
    del sys.modules["namesake"]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts engines, which are closed in the end; the cluster is one that was running before."""
    made: list[Engine] = []

    def start_one(job: Job, where: str) -> Engine:
        options: dict[str, Any] = {"workers": None if where == "local" else 1}
        if where == "cluster":
            options["address"] = request.getfixturevalue("ray_cluster")
        if where in ("ray", "cluster"):
            pytest.importorskip("ray", reason="ray is not installed: pip install 'safemargin[ray]'")
        made.append(make_engine(job, "ray" if where == "cluster" else where, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start_one
    for engine in made:
        engine.close()


def job_of(namesake: Any, make: str = "make", **changes: Any) -> Job:
    job = a_job(getattr(namesake, make), load_policy(namesake.policy, kind="logits"))
    return replace(job, **changes)


def fingerprints(engine: Engine) -> dict[Any, str]:
    return {key: episode.fingerprint for key, episode in episodes_of(engine, 5).items()}


# -- variables, folder and files ------------------------------------------------------------------


@pytest.mark.parametrize("where", ["processes", "ray"])
def test_variables_and_folder_of_the_driver_reach_its_own_workers(
    namesake: Any, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    usual = fingerprints(LocalEngine(job_of(namesake)))
    monkeypatch.setenv("NAMESAKE_GAIN", "-1")
    (tmp_path / "limit.txt").write_text("20")
    monkeypatch.chdir(tmp_path)
    expected = fingerprints(LocalEngine(job_of(namesake)))
    assert set(expected.values()).isdisjoint(usual.values())
    assert fingerprints(start(job_of(namesake), where)) == expected


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        (
            "NAMESAKE_LIMIT",
            "20",
            r"another environment: an episode continues after 20 steps, here it truncated after 20 "
            r"steps \(trial run 0, step 20\)",
        ),
        (
            "NAMESAKE_GAIN",
            "-1",
            r"another policy: it scores the same observation as \[[1-5], 0\], here as "
            r"\[-[1-5], -?0\] \(trial run 0, step 0\)",
        ),
    ],
)
def test_a_cluster_with_other_variables(
    ray_cluster: str,
    namesake: Any,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    what: str,
) -> None:
    monkeypatch.setenv(name, value)  # after the cluster has started
    engine = start(job_of(namesake), "cluster")
    reason = f"; there the environment variables {name} differ; a cluster keeps the variables,"
    with pytest.raises(EngineFault, match=rf"the Ray worker on node \S+ runs {what}{reason}"):
        episodes_of(engine, 1)


def test_a_cluster_that_was_started_in_another_folder(
    ray_cluster: str,
    namesake: Any,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    there = os.getcwd()
    (tmp_path / "limit.txt").write_text("20")
    monkeypatch.chdir(tmp_path)
    engine = start(job_of(namesake), "cluster")
    with pytest.raises(
        EngineFault,
        match=f"runs another environment: .*; there .*the working folder is {there}, not "
        f"{tmp_path}; a cluster keeps .* start it again with those of this process",
    ):
        episodes_of(engine, 1)


@pytest.mark.parametrize("where", ["processes", "ray", "cluster"])
def test_a_file_that_was_edited_after_this_process_had_loaded_it(
    namesake: Any, start: Start, where: str
) -> None:
    file = Path(namesake.__file__)
    file.write_text(MODULE.replace("LIMIT = 30", "LIMIT = 20"))
    engine = start(job_of(namesake), where)
    with pytest.raises(
        EngineFault,
        match="runs another environment: an episode truncated after 20 steps, here it continues "
        "after 20 steps .*other versions of the modules namesake are loaded",
    ):
        episodes_of(engine, 1)


def test_state_that_a_script_has_set(namesake: Any, start: Start) -> None:
    namesake.LIMIT = 20
    with pytest.raises(
        EngineFault,
        match="a worker process runs another environment: .*modules namesake.*; workers import all "
        "code afresh: restart this program if a file was edited, and let the environment and the "
        "policy set up their own state",
    ):
        episodes_of(start(job_of(namesake), "processes"), 1)


def test_a_worker_that_replaces_another_proves_itself_too(
    namesake: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(job_of(namesake), "processes")
    assert set(episodes_of(engine, 3)) == set(keys(3))
    monkeypatch.setenv("NAMESAKE_LIMIT", "20")
    for pid in worker_pids(engine):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineFault, match="another environment: .*variables NAMESAKE_LIMIT differ"):
        episodes_of(engine, 3)


@pytest.mark.parametrize("where", ["local", "processes"])
def test_an_environment_that_has_changed_since_the_study_was_opened(
    namesake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    with create(tmp_path / "study", namesake.make_paid) as study:
        monkeypatch.setenv("NAMESAKE_BONUS", "1")
        with pytest.raises(
            EngineFault,
            match="this process does not run the study's environment: .*restore the environment "
            "variables, the working folder and the files as they were when the study was opened",
        ):
            study.collect(2, 1, engine=where)
        assert study.status().episodes == 0


# -- studies resumed ------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "workers"), [("local", None), ("processes", 1)])
def test_a_study_is_resumed_only_by_the_policy_it_was_made_with(
    namesake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, workers: int | None
) -> None:
    policy = load_policy(namesake.policy, kind="logits")
    paths = [tmp_path / "in one go", tmp_path / "resumed"]
    with create(paths[0], namesake.make, policy) as study:
        study.collect(10, 2, engine="local")
    with create(paths[1], namesake.make, policy) as study:
        study.collect(5, 2, engine="local")
    monkeypatch.setenv("NAMESAKE_GAIN", "-1")
    before = contents(paths[1])
    for given in (
        sm.Study.open(paths[1], env=namesake.make, policy=policy),
        create(paths[1], namesake.make, policy),
    ):
        with (
            given as study,
            pytest.raises(
                StudyMismatch,
                match="the environment or the policy behaves differently now than when the study "
                "in .* was made; check environment variables, the working folder, files and the "
                "versions of libraries, or collect into another folder",
            ),
        ):
            study.collect(10, 2, engine=where, workers=workers)
    assert contents(paths[1]) == before
    monkeypatch.delenv("NAMESAKE_GAIN")
    with sm.Study.open(paths[1], env=namesake.make, policy=policy) as study:
        study.collect(10, 2, engine=where, workers=workers)
    assert contents(paths[1]) == contents(paths[0])


@pytest.mark.parametrize(
    ("make", "name", "value", "what"),
    [
        ("make_distant", "NAMESAKE_LIMIT", "20", "the environment or the policy"),
        ("make", "NAMESAKE_DOUBT", "1", "the proxy 'doubt'"),
    ],
)
def test_a_study_is_resumed_only_with_its_limits_and_proxies(
    namesake: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: str,
    name: str,
    value: str,
    what: str,
) -> None:
    doubt = Proxy("doubt", namesake.doubt, ("logits",))
    with create(tmp_path / "study", getattr(namesake, make), proxies=(doubt,)) as study:
        study.collect(1, 1, engine="local")
        monkeypatch.setenv(name, value)
        with pytest.raises(
            StudyMismatch, match=f"{what} behaves differently now than when the study in"
        ):
            study.collect(2, 1, engine="local")


def test_a_study_that_knows_no_proof_gets_one(
    namesake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions kept none, and another version's may be of other trial runs."""
    policy = load_policy(namesake.policy, kind="logits")
    with create(tmp_path / "study", namesake.make, policy) as study:
        study.collect(1, 1, engine="local")
        made = study.store.meta("proof")
        for known in (None, {**made, "version": made["version"] + 1, "runs": "other"}):
            study.store.set_meta("proof", known)
            study.collect(2, 1, engine="local")
            assert study.store.meta("proof") == made
        monkeypatch.setenv("NAMESAKE_GAIN", "-1")
        with pytest.raises(StudyMismatch, match="behaves differently now"):
            study.collect(3, 1, engine="local")


def test_labels_are_collected_only_with_the_policy_of_the_study(
    namesake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(namesake.policy, kind="logits")
    with create(tmp_path / "study", namesake.make, policy) as study:
        study.collect(3, 1, engine="local")
        monkeypatch.setenv("NAMESAKE_GAIN", "-1")
        with pytest.raises(StudyMismatch, match=f"the study in {study.path} was made"):
            study.learn(labels=2, engine="local")


# -- proofs compared -------------------------------------------------------------------------------


def check(job: Job, proof: Proof, change: Callable[[], object]) -> str:
    """What the driver says to a worker's proof once something has changed in the driver."""
    change()
    with pytest.raises(EngineFault) as fault:
        Witness(job, advice="do this").check(proof, worker="a worker")
    return str(fault.value)


def test_what_the_policy_never_does_is_proven_as_well(
    namesake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(namesake, "make_paid")
    said = check(job, prove(job), lambda: monkeypatch.setenv("NAMESAKE_BONUS", "1"))
    assert "another environment: it behaves differently under random actions; " in said


def test_a_time_limit_that_no_trial_run_reaches(
    namesake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(namesake, "make_distant")
    said = check(job, prove(job), lambda: monkeypatch.setenv("NAMESAKE_LIMIT", "20"))
    assert "another environment: its time limit is [3000] steps, here it is [2000]; " in said


def test_a_proxy_that_is_another(namesake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = Proxy("doubt", namesake.doubt, ("logits",))
    job = job_of(namesake, proxies=(doubt,))
    said = check(job, prove(job), lambda: monkeypatch.setenv("NAMESAKE_DOUBT", "1"))
    assert "another proxy 'doubt': its value is not the one here (trial run 0, step 0)" in said


def test_scores_that_differ_in_the_last_bits(
    namesake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(namesake)
    theirs = prove(job)
    theirs = replace(theirs, surroundings=replace(theirs.surroundings, processor="an older one"))
    said = check(job, theirs, lambda: monkeypatch.setenv("NAMESAKE_GAIN", "1.0000001"))
    assert "the policy with other rounding: scores of the same observation differ by up to" in said
    assert "collect it on processors (or GPUs) of one type, with the same number of threads" in said
    assert "the processor is an older one, not " in said


def test_values_of_variables_are_not_shown(namesake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"A_SECRET_{number}" for number in range(7)]
    job = job_of(namesake)
    theirs = prove(job)

    def change() -> None:
        monkeypatch.setattr(namesake, "limit", lambda: 20)
        for name in names:
            monkeypatch.setenv(name, "hunter2")

    said = check(job, theirs, change)
    assert f"there the environment variables {', '.join(names[:5])} and 2 more differ" in said
    assert "hunter2" not in said + repr(theirs)


def test_a_difference_without_a_reason(namesake: Any) -> None:
    job = job_of(namesake)
    theirs = prove(job)
    other = replace(theirs.runs[0], rewards=theirs.runs[0].rewards + 1)
    with pytest.raises(
        EngineFault,
        match=r"another environment: reward is not the one here \(trial run 0, step 0\); no "
        r"environment variable, .* accounts for it, .*\(PYTHONHASHSEED\); do this",
    ):
        Witness(job, advice="do this").check(
            replace(theirs, runs=(other, *theirs.runs[1:])), worker="a worker"
        )


def test_an_environment_named_by_an_address_is_the_same_in_every_worker(
    namesake: Any, start: Start, tmp_path: Path
) -> None:
    """The name of a partial function holds the address of the function it calls."""
    make = functools.partial(namesake.make_for, 25)
    with create(tmp_path / "study", make) as study:
        status = study.collect(2, 1, workers=2, engine="processes")
    assert sum(status.moments.values()) == 3


def test_trial_runs_are_short(namesake: Any) -> None:
    def steps(make: str) -> list[int]:
        return [run.steps for run in prove(job_of(namesake, make)).runs]

    assert sum(steps("make")) <= TRIAL_STEPS
    assert len(steps("make")) == TRIAL_RUNS
    assert sum(steps("make_distant")) == TRIAL_STEPS
    assert all(isinstance(run, Episode) for run in prove(job_of(namesake)).runs)
    assert np.isfinite(prove(job_of(namesake)).runs[0].scores).all()
