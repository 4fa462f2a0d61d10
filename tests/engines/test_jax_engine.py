"""The engine in JAX gives what the other engines give, whatever its lanes, and refuses the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safemargin.core import jax_library
from safemargin.core.records import Episode, EpisodeKey, Measurement, Moment
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.engines import check_engine, make_engine, tasks
from safemargin.engines.base import Engine, EpisodeTask, Job, MomentTask
from safemargin.engines.local import LocalEngine
from safemargin.environments import EnvironmentSpec
from safemargin.environments.doctor import examine
from safemargin.errors import EngineFault, EnvironmentFault, InvalidInput, MissingExtra
from safemargin.policies.loading import load_policy
from safemargin.policies.proxies import proxies_for
from safemargin.study import Study

pytest.importorskip("jax", reason="needs safemargin[jax]")

from safemargin.engines.jax import JaxEngine
from safemargin.engines.jax.group import Group
from safemargin.engines.jax.program import BAD_OBSERVATION, BAD_REWARD, BAD_SCORES

WORLDS = Path(__file__).parents[1] / "helpers" / "jax_worlds.py"
CAREFUL = f"{WORLDS}:careful"
SHORT = {"gamma": 0.8, "n_values": (1, 2, 4), "horizon_error": 0.05}


def make_job(
    world: str,
    settings: dict[str, Any],
    *,
    random: bool = False,
    policy_name: str = "careful",
    **arguments: Any,
) -> Job:
    policy, chosen = load_policy(f"{WORLDS}:{policy_name}"), Settings(**settings)
    return Job(
        EnvironmentSpec.parse(f"jax:{WORLDS}:{world}", arguments),
        policy,
        chosen,
        proxies_for(policy.kind, [], []),
        "snapshot",
        Randomness(environment=random, policy=chosen.action_choice != "greedy"),
    )


def run_episodes(engine: Engine, count: int) -> list[Episode]:
    keys = [EpisodeTask(EpisodeKey("natural", number)) for number in range(count)]
    found = [piece.result[0] for piece in engine.run(keys)]  # type: ignore[index]
    return sorted(found, key=lambda episode: episode.key)  # type: ignore[union-attr]


def run_moments(
    engine: Engine, episodes: Sequence[Episode], settings: Settings
) -> dict[tuple[int, int], Measurement]:
    tasks = [
        MomentTask(each, Moment(each.key, number % 9), settings.n_values)
        for number, each in enumerate(episodes)
    ]
    pieces = [piece.result for piece in engine.run(tasks)]
    return {
        (moment.episode.index, found.estimate.n): found  # type: ignore[union-attr]
        for moment, found in pieces  # type: ignore[misc]
    }


def assert_same(ours: Any, theirs: Any, *, steps: bool = True) -> None:
    assert ours.keys() == theirs.keys()
    for key, found in ours.items():
        assert found.estimate == theirs[key].estimate, key
        assert np.array_equal(found.perturbed, theirs[key].perturbed)
        assert np.array_equal(found.unperturbed, theirs[key].unperturbed)
        if steps:
            assert (found.steps, found.wasted) == (theirs[key].steps, theirs[key].wasted)


def assert_same_episodes(ours: Sequence[Episode], theirs: Sequence[Episode]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for part in ("actions", "rewards", "scores"):
            first, second = getattr(one, part), getattr(other, part)
            assert first.dtype == second.dtype
            assert np.array_equal(first, second)
        assert (one.seed, one.opening, one.ended) == (other.seed, other.opening, other.ended)
        assert one.proxies.keys() == other.proxies.keys()


class OnLedge:
    """What the engine did on a ledge without wind."""

    def __init__(self) -> None:
        self.job = make_job("Ledge", SHORT)
        self.engine = JaxEngine(self.job, groups=1)
        self.episodes = run_episodes(self.engine, 12)
        self.found = run_moments(self.engine, self.episodes, self.job.settings)


@pytest.fixture(scope="module")
def ledge() -> OnLedge:
    return OnLedge()


def loss(n: int, left: int, settings: Settings) -> float:
    """Return c(t, n) on the ledge: the first fall comes after j mistakes with chance 2^-(j+1)."""
    worth = settings.gamma ** np.arange(min(left, settings.horizon))
    return float(sum(0.5 ** (j + 1) * worth[j:].sum() for j in range(min(n, left))))


def test_criticality_on_the_ledge_is_exact(ledge: OnLedge) -> None:
    assert len(ledge.found) == 36
    for (index, n), found in ledge.found.items():
        left = ledge.episodes[index].steps - index % 9
        assert found.estimate.exact
        assert found.estimate.mean == pytest.approx(loss(n, left, ledge.job.settings), abs=1e-12)


def test_the_study_is_that_of_the_ordinary_engine(ledge: OnLedge) -> None:
    ordinary = LocalEngine(ledge.job)
    assert_same_episodes(ledge.episodes, run_episodes(ordinary, 12))
    found = run_moments(ordinary, ledge.episodes, ledge.job.settings)
    assert_same(ledge.found, found, steps=False)


def test_the_number_of_lanes_changes_nothing(
    ledge: OnLedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledge.engine, "_groups", 3)
    assert_same_episodes(run_episodes(ledge.engine, 12), ledge.episodes)
    assert_same(run_moments(ledge.engine, ledge.episodes, ledge.job.settings), ledge.found)


@pytest.mark.parametrize("part", ["launch", "land"])
def test_too_little_memory_halves_the_lanes(
    ledge: OnLedge, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    calls = []

    def fail_once(group: Group, *given: Any) -> Any:
        calls.append(group)
        if len(calls) == 2:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
        return original(group, *given)

    original = getattr(Group, part)
    monkeypatch.setattr(Group, part, fail_once)
    monkeypatch.setattr(ledge.engine, "_groups", 4)
    before = ledge.engine.halved
    assert_same(run_moments(ledge.engine, ledge.episodes, ledge.job.settings), ledge.found)
    assert ledge.engine.halved == before + 1


def test_a_group_that_never_fits_is_an_error(
    ledge: OnLedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(group: Group, *given: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")

    monkeypatch.setattr(Group, "launch", fail)
    with pytest.raises(EngineFault, match="too little memory for 512 lanes of 'Ledge'"):
        run_episodes(ledge.engine, 2)


def test_a_replay_that_differs_is_an_error(ledge: OnLedge) -> None:
    first = ledge.episodes[3]
    other = replace(first, scores=first.scores + np.float32(1))
    with pytest.raises(EnvironmentFault, match="did not give what was recorded at step 0"):
        list(ledge.engine.run([MomentTask(other, Moment(other.key, 3), (1,))]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (BAD_REWARD, "Ledge: the reward in a trial is NaN or infinite"),
        (BAD_OBSERVATION, "Ledge: the observation in a trial contains NaN"),
        (BAD_SCORES, "scores must be finite numbers, and some in a trial are not"),
    ],
)
def test_what_is_not_a_number_is_named(ledge: OnLedge, code: int, message: str) -> None:
    with pytest.raises(Exception, match=message):
        ledge.engine._parts.check(code, "a trial")


def test_wind_and_slips_are_those_of_the_ordinary_engine() -> None:
    settings = {
        **SHORT,
        "trial_plan": "paper",
        "sampling_error": 0.5,
        "action_choice": "epsilon-greedy",
        "epsilon": 0.1,
        "opening": 5,
    }
    job = make_job("Choosy", settings, random=True, wind=0.05)
    engine, ordinary = JaxEngine(job), LocalEngine(job)
    episodes = run_episodes(engine, 3)
    assert_same_episodes(episodes, run_episodes(ordinary, 3))
    found = run_moments(engine, episodes, job.settings)
    assert_same(found, run_moments(ordinary, episodes, job.settings), steps=False)
    assert len({each.estimate.mean for each in found.values()}) > 3


def test_a_recurrent_policy_that_samples_is_that_of_the_ordinary_engine() -> None:
    settings = {**SHORT, "trial_plan": "paper", "sampling_error": 1.0, "action_choice": "sampled"}
    job = make_job("Ledge", settings, policy_name="moody")
    engine, ordinary = JaxEngine(job), LocalEngine(job)
    episodes = run_episodes(engine, 3)
    assert any(len(set(episode.actions.tolist())) == 2 for episode in episodes)
    assert_same_episodes(episodes, run_episodes(ordinary, 3))
    found = run_moments(engine, episodes, job.settings)
    assert_same(found, run_moments(ordinary, episodes, job.settings), steps=False)


def test_a_study_in_jax_runs_on_this_engine(tmp_path: Path) -> None:
    how = {**SHORT, "n_values": (1, 4), "trials": 4, "max_enumerated": 2}
    fast = Study.create(tmp_path / "jax", f"jax:{WORLDS}:Ledge", CAREFUL, how)
    assert isinstance(make_engine(fast.job()), JaxEngine)
    fast.collect(2, 1)
    slow = Study.create(tmp_path / "local", f"jax:{WORLDS}:Ledge", CAREFUL, how)
    slow.collect(2, 1, engine="local")
    ours, theirs = fast.tuples(), slow.tuples()
    assert np.array_equal(ours.criticalities, theirs.criticalities)
    assert np.array_equal(ours.proxies, theirs.proxies)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ("Unpaid", "reward at step .* is nan, not a finite number"),
        ("Again", "it resets itself: the last observation of"),
        ("Counting", "step is not a pure function: what it does depends on how often"),
        ("Calling", "the same program gave something else for the same state, action and key"),
        ("Bragging", "it calls itself deterministic, and yet a step came out otherwise"),
    ],
)
def test_the_doctor_finds_what_is_not_pure(world: str, message: str) -> None:
    found = examine(EnvironmentSpec.parse(f"jax:{WORLDS}:{world}").make, returns=False)
    assert not found.measurable
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found.verdict)


def test_other_studies_are_refused() -> None:
    job = make_job("Ledge", SHORT)
    with pytest.raises(InvalidInput, match=r"cannot run this study: it runs environments of pure"):
        make_engine(replace(job, environment=EnvironmentSpec.parse("CartPole-v1")), "jax")
    mistakes = replace(job, settings=replace(job.settings, perturb="stuck"))
    with pytest.raises(InvalidInput, match="its mistakes are random actions, not 'stuck'"):
        make_engine(mistakes, "jax")
    against = replace(job, settings=replace(job.settings, reference="zoo:rocket"))
    with pytest.raises(InvalidInput, match="it has the agent itself act, not 'zoo:rocket'"):
        make_engine(against, "jax")
    assert isinstance(make_engine(mistakes, workers=1), LocalEngine)
    with pytest.raises(InvalidInput, match="as many lanes as its device has room for"):
        make_engine(job, "jax", workers=2)
    with pytest.raises(InvalidInput, match="device is for engine 'jax', got engine 'local'"):
        make_engine(job, "local", device="cpu")


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    if jax_library.device_kind() != "cpu":
        pytest.skip("there is a GPU")
    with pytest.raises(EngineFault, match="there is no GPU that JAX can use here, only 'cpu'"):
        check_engine(device="gpu")


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_library, "_available", lambda: False)
    with pytest.raises(
        MissingExtra, match=r"engine 'jax' needs .* pip install 'safemargin\[jax\]'"
    ):
        check_engine("jax")


def test_a_ray_worker_does_bundles_of_tasks_in_jax(
    ledge: OnLedge, ray_in_use: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TOGETHER", 5)
    engine = make_engine(ledge.job, "ray", workers=1)
    assert_same_episodes(run_episodes(engine, 12), ledge.episodes)
    assert_same(run_moments(engine, ledge.episodes, ledge.job.settings), ledge.found)


TWO_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import numpy as np
from test_jax_engine import *
import safemargin.engines.jax.engine as jax_engine
job = make_job("Ledge", SHORT)
engine = JaxEngine(job, groups=1)
assert engine.workers == 2
episodes = run_episodes(engine, 600)
found = run_moments(engine, episodes, job.settings)
one = jax_library.devices()[:1]
jax_engine.devices = lambda kind: one
alone = JaxEngine(job, groups=1)
assert (alone.workers, engine._program.size) == (1, 2 * alone._program.size)
assert_same_episodes(run_episodes(alone, 600), episodes)
assert_same(run_moments(alone, episodes, job.settings), found)
print("the same on two devices")
"""


def test_two_devices_give_the_study_of_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "the same on two devices" in done.stdout, done.stderr
