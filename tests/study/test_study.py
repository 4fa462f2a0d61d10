"""A study from end to end, interrupted, extended, mixed up and damaged."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import TESTS, WORLDS
from helpers.studies import POLICY, SETTINGS, contents, create, estimates_in
from helpers.worlds import (
    TABLES,
    TableWorld,
    always_first,
    branching,
    chain,
    make_branching,
    make_drawn,
    make_lives,
    make_slippery_chain,
)

import safemargin as sm
from safemargin.cli import main
from safemargin.core.records import EpisodeKey
from safemargin.environments.identity import behaviour
from safemargin.errors import (
    InvalidInput,
    NotMeasurable,
    PolicyFault,
    StudyBusy,
    StudyError,
    StudyIncomplete,
    StudyMismatch,
)
from safemargin.study import plot_info, plots
from safemargin.study.plays import FewPlays
from safemargin.study.status import study_status
from safemargin.study.store import DATABASE, Store


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "finished"
    with create(path) as study:
        study.collect(natural=14, spread=12, workers=1)
    return path


def test_moments_at_the_same_state_are_one(finished: Path) -> None:
    with sm.Study.open(finished) as study:
        status = study.status()
        looks = np.stack([study.tuples(name).proxies for name in study.proxies], axis=1)
    assert status.distinct_moments == len(np.unique(looks, axis=0)) < status.chosen_moments


def test_few_plays_are_reported_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All episodes of this world end in the same steps, whatever they began with."""
    small = {"n_values": (1,), "trials": 2, "opening": 3}
    with sm.Study.create(
        tmp_path / "study", make_drawn, always_first, small, scores="logits"
    ) as study:
        with pytest.raises(FewPlays, match=r"^60 moments lie in \d play"):  # a warning, elsewhere
            study.collect(40, 20, workers=1)
        status = study.status()
        assert (status.chosen_moments, status.estimates) == (60, 0)
        assert 0 < status.plays < 10
    assert main(["status", str(tmp_path / "study")]) == 0
    assert f"plays        60 moments lie in {status.plays} play" in capsys.readouterr().out
    world = [f"{WORLDS}:make_drawn", f"{WORLDS}:always_first", "--scores", "logits"]
    options = ["--natural", "40", "--spread", "20", "--n", "1", "--trials", "2", "--opening", "3"]
    assert main(["collect", *world, "-o", str(tmp_path / "again"), *options, "--workers", "1"]) == 0
    assert capsys.readouterr().err.count("note: 60 moments lie in") == 1


def test_from_end_to_end(finished: Path, tmp_path: Path) -> None:
    with sm.Study.open(finished) as study:
        status = study.status()
        assert status.moments == {"natural": 14, "spread": 12}
        assert status.estimates == 26 * 3
        assert status.estimates_left == 0
        assert status.seconds_left == 0
        assert status.trials >= 26 * 3 * 10
        assert study.proxies == ["log_prob_range", "prob_range", "certainty"]
        assert study.diagnosis["measurable"]
        tuples = study.tuples()
        assert tuples.criticalities.shape == (26, 3)
        assert list(tuples.phases) == ["natural"] * 14 + ["spread"] * 12
        margins = study.fit(confidence=0.9)
        assert margins.confidence == 0.9
        assert margins.policy["identity"] == POLICY.identity
        assert isinstance(margins(proxy=tuples.proxies.min(), tolerance=5.0), int)
        assert margins(tuples.proxies.min(), [0.0, 1e9]).tolist()[1] == 4
        margins.save(tmp_path / "margins.json")
        again = sm.Margins.load(tmp_path / "margins.json")
        assert again.to_dict() == margins.to_dict()
        validation = study.validate()
        assert [row.n for row in validation.coverage] == [1, 2, 4]
        pictures = study.plot(tmp_path / "figures", confidence=0.9)
        assert {path.name for path in pictures} == {"densities.png", "margins.png", "proxies.png"}


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_tables(
    finished: Path, tmp_path: Path, workers: int
) -> None:
    with create(tmp_path / "study") as study:
        study.collect(natural=14, spread=12, workers=workers)
    assert contents(tmp_path / "study") == contents(finished)


def test_a_study_can_be_extended_and_is_then_as_if_collected_at_once(
    finished: Path, tmp_path: Path
) -> None:
    with create(tmp_path / "study") as study:
        study.collect(natural=3, spread=12, workers=1)
        assert study.status().moments == {"natural": 3, "spread": 12}
    with sm.Study.open(tmp_path / "study", env=make_branching, policy=POLICY) as study:
        study.collect(natural=14, spread=12, workers=1)
    assert contents(tmp_path / "study") == contents(finished)


def test_a_stochastic_study_does_not_depend_on_workers_either(tmp_path: Path) -> None:
    settings = sm.Settings(
        trial_plan="paper", n_values=(1, 2), sampling_error=4.0, max_trials=20, exclude_last=2
    )
    for workers in (1, 2):
        path = tmp_path / str(workers)
        with create(path, make_slippery_chain, settings=settings) as study:
            study.collect(natural=6, spread=6, workers=workers)
            assert not study.diagnosis["environment_deterministic"]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    store = Store.open(tmp_path / "1")
    measurements = [
        each for moment in store.moments() for each in store.measurements(moment.episode)
    ]
    assert len(measurements) == 24
    for measurement in measurements:  # as many unperturbed returns as trials, not one
        assert len(measurement.unperturbed) == measurement.estimate.trials


DRIVER = """
import sys
sys.path[:0] = [sys.argv[2]]
from helpers.studies import create
with create(sys.argv[1]) as study:
    study.collect(natural=14, spread=12, workers=2)
"""


@pytest.mark.parametrize("moment", ["at once", "in the middle", "late"])
def test_killed_and_run_again_gives_the_same_tables(
    finished: Path, tmp_path: Path, moment: str
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    path = tmp_path / "study"
    command = [sys.executable, str(script), str(path), str(TESTS)]
    process = subprocess.Popen(command)
    wanted = {"at once": 0, "in the middle": 20, "late": 50}[moment]
    deadline = time.monotonic() + 600
    while estimates_in(path) < wanted or not (path / DATABASE).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = estimates_in(path)
    assert before < 78
    subprocess.run(command, check=True, timeout=120)
    assert contents(path) == contents(finished)


def test_an_interrupted_collection_goes_on(finished: Path, tmp_path: Path) -> None:
    class Interrupting:
        pieces = 0

        def stage(self, name: str, *, total: int, done: int) -> None: ...

        def advance(self, steps: int) -> None:
            self.pieces += 1
            if self.pieces == 40:
                raise KeyboardInterrupt

    with create(tmp_path / "study") as study:
        with pytest.raises(KeyboardInterrupt):
            study.collect(natural=14, spread=12, workers=2, progress=Interrupting())
        status = study.status()
        assert 0 < status.estimates < 78
        assert status.seconds_left is not None
        assert status.seconds_left > 0
        study.collect(natural=14, spread=12, workers=2)
    assert contents(tmp_path / "study") == contents(finished)


# -- what must be refused ------------------------------------------------------------------------


def another(observations: np.ndarray) -> np.ndarray:
    return np.tile(np.array([[2.0, 1.0]], np.float32), (len(observations), 1))


def test_another_policy_environment_or_settings_is_not_mixed_in(finished: Path) -> None:
    before = contents(finished)
    other_policy = sm.load_policy(another, kind="logits")
    with pytest.raises(StudyMismatch, match="was made with another policy"):
        create(finished, policy=other_policy)
    with pytest.raises(StudyMismatch, match="was made with another environment"):
        create(finished, lambda: TableWorld(branching(41), starts=2))
    with pytest.raises(StudyMismatch, match=r"other settings \(opening: 6, not 7\)"):
        create(finished, settings=sm.Settings.from_mapping({**_given(SETTINGS), "opening": 7}))
    with pytest.raises(StudyMismatch, match="records the proxies"):
        create(finished, proxies=[_own_proxy()])
    with (
        sm.Study.open(finished, policy=other_policy, env=make_branching) as study,
        pytest.raises(StudyMismatch, match="another policy"),
    ):
        study.collect(20, 20)
    assert contents(finished) == before


def _given(settings: sm.Settings) -> dict[str, Any]:
    import json

    values: dict[str, Any] = json.loads(settings.to_json())
    return values


def _own_proxy() -> Any:
    from safemargin.policies.proxies import Proxy

    return Proxy("mine", lambda scores, history, n: float(n or 0), ("logits",), per_n=True)


def test_a_proxy_that_looks_at_n(tmp_path: Path) -> None:
    from safemargin.policies.proxies import Proxy

    def own(scores: np.ndarray, history: list[Any], n: int | None) -> float:
        return float(scores[0]) * (n or 0)

    proxy = Proxy("own", own, ("logits",), per_n=True)
    with create(tmp_path / "study", proxies=[proxy]) as study:
        study.collect(8, 8, workers=2)
        tuples = study.tuples("own")
        assert tuples.proxies.shape == (16, 3)
        np.testing.assert_allclose(tuples.proxies[:, 2], 4 * tuples.proxies[:, 0])
        lines = study.export(tmp_path / "steps.csv", steps=True).read_text().splitlines()
        steps = list(csv.DictReader(lines))
        assert {name for name in steps[0] if "own" in name} == {"own_n1", "own_n2", "own_n4"}
        for row in steps:  # the proxy is proportional to n
            assert float(row["own_n4"]) == 2 * float(row["own_n2"]) == 4 * float(row["own_n1"])
        margins = study.fit(0.8, proxy="own")
        assert margins.bound.looks_at_n
        assert margins([1.0, 2.0, 4.0], 1e9) == 4
        validation = study.validate(0.5, proxy="own")
        assert len(validation.sample_sizes) == 2 * 3


def test_single_runs_and_groups(finished: Path) -> None:
    with sm.Study.open(finished) as study:
        tuples = study.tuples(estimand="single-run")
        assert tuples.runs is not None
        assert tuples.runs.shape == (26, 8, 3)
        assert np.isfinite(tuples.runs).all()
        key = EpisodeKey("natural", int(tuples.indices[3]))
        measurements = study.store.measurements(key)
        assert [measured.estimate.n for measured in measurements] == [1, 2, 4]
        for column, measured in enumerate(measurements):
            known = measured.estimate.unperturbed - measured.perturbed
            assert set(tuples.runs[3, :, column]) <= set(known)
        np.testing.assert_array_equal(tuples.losses("single-run"), tuples.runs)
        plain = study.tuples()
        assert plain.runs is None
        with pytest.raises(InvalidInput, match="these tuples hold no single runs; use"):
            plain.losses("single-run")
        with pytest.raises(InvalidInput, match="estimand 'singel' is unknown"):
            study.tuples(estimand="singel")  # type: ignore[arg-type]
        # Moments of copies of one episode share a label, others do not.
        prints = [
            study.store.episode(EpisodeKey(phase, int(index))).fingerprint
            for phase, index in zip(plain.phases, plain.indices, strict=True)
        ]
        assert plain.groups is not None
        assert len(set(plain.groups)) == len(set(prints)) < 26
        assert len(set(zip(prints, plain.groups, strict=True))) == len(set(prints))
        margins = study.fit(0.9, estimand="single-run")
        assert margins.estimand == "single-run"
        comparison = study.compare(0.8, proxies=["certainty"], methods=["calibrated"])
        assert comparison.candidates[0].proxy == "certainty"


def test_two_collections_at_once(finished: Path) -> None:
    with (
        sm.Study.open(finished, env=make_branching, policy=POLICY) as first,
        sm.Study.open(finished, env=make_branching, policy=POLICY) as second,
        first.store.writing(),
        pytest.raises(StudyBusy, match="another process is collecting"),
    ):
        second.collect(14, 12)


class Together:
    """Rivals wait for one another where the doctor is done and the study is about to be made."""

    def __init__(self, barrier: Any) -> None:
        self.barrier = barrier

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None:
        self.barrier.wait(60)


def begin_together(folder: Path, barrier: Any, reports: Any) -> None:
    small = sm.Settings(n_values=(1,), trials=2, opening=6)
    for number in range(2):
        try:
            with create(folder / str(number), settings=small, progress=Together(barrier)) as study:
                study.collect(natural=2, spread=2, workers=1)
            reports.put("collected")
        except StudyError as error:
            reports.put(str(error))


def test_two_that_begin_the_same_study_at_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, reports = spawn.Barrier(2), spawn.Queue()
    arguments = (tmp_path, barrier, reports)
    rivals = [spawn.Process(target=begin_together, args=arguments, daemon=True) for _ in range(2)]
    for rival in rivals:
        rival.start()
    heard = [reports.get(timeout=60) for _ in range(2 * 2)]
    for rival in rivals:
        rival.join(60)
    assert heard.count("collected") >= 2
    busy = "another process is collecting into"
    assert all(text == "collected" or text.startswith(busy) for text in heard)
    for number in range(2):
        with sm.Study.open(tmp_path / str(number)) as study:
            assert study.status().moments == {"natural": 2, "spread": 2}


def test_the_parts_are_proven_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fingerprint for each study that is created or opened, and one for each collection."""
    proven: list[Any] = []

    def counting(env: Any) -> list[bytes]:
        proven.append(env)
        return behaviour(env)

    monkeypatch.setattr("safemargin.environments.identity.behaviour", counting)
    monkeypatch.setattr("safemargin.engines.proof.behaviour", counting)
    with create(tmp_path / "study") as study:
        assert len(proven) == 1
        study.collect(2, 1, workers=1)
        study.job()
    assert len(proven) == 2
    with sm.Study.open(tmp_path / "study", env=make_branching, policy=POLICY) as study:
        assert len(proven) == 2  # looking at a study proves nothing
        study.collect(3, 1, workers=1)
        assert len(proven) == 4
        study.collect(3, 2, workers=1)
    assert len(proven) == len(set(map(id, proven))) == 5


def test_the_status_is_computed_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def counting(store: Store, settings: sm.Settings) -> Any:
        computed.append(1)
        return study_status(store, settings)

    monkeypatch.setattr("safemargin.study.study.study_status", counting)
    with create(tmp_path / "study") as study, sm.Study.open(tmp_path / "study") as other:
        assert other.status().estimates == other.status().estimates == 0
        assert len(computed) == 1
        collected = study.collect(2, 1, workers=1)
        assert study.status() is collected
        assert len(computed) == 2
        assert other.status() == collected  # another connection's changes are seen
        assert len(computed) == 3


def test_an_empty_study_says_so(tmp_path: Path) -> None:
    with create(tmp_path / "study") as study:
        for use in (study.fit, study.validate, lambda: study.plot(tmp_path)):
            with pytest.raises(StudyIncomplete, match="holds no finished moment yet"):
                use()
        with pytest.raises(StudyIncomplete, match="no tuples to export"):
            study.export(tmp_path / "tuples.csv")
        assert study.status().seconds_left == 0
        study.store.set_meta("target", {"natural": 3, "spread": 0, "workers": 1})
        assert study.status().seconds_left is None  # nothing is known yet


def test_bad_numbers(tmp_path: Path, finished: Path) -> None:
    with sm.Study.open(finished, env=make_branching, policy=POLICY) as study:
        with pytest.raises(InvalidInput, match="natural and spread must be at least 0"):
            study.collect(-1, 5)
        with pytest.raises(InvalidInput, match="workers must be at least 1, got 0"):
            study.collect(1, 1, workers=0)
        with pytest.raises(InvalidInput, match="the study has no proxy 'log_prob_rang'; did you"):
            study.tuples("log_prob_rang")
    with pytest.raises(InvalidInput, match="proxy 'q_range' does not apply to scores of kind"):
        create(tmp_path / "study", settings=sm.Settings(selection_proxy="q_range"))


def test_a_study_of_python_objects_must_be_given_them_again(tmp_path: Path) -> None:
    env = TableWorld(branching(40), starts=2)
    with create(tmp_path / "study", lambda: TableWorld(TABLES[env.table], starts=2)):
        pass
    with (
        sm.Study.open(tmp_path / "study") as study,
        pytest.raises(InvalidInput, match="give it again: Study.open"),
    ):
        study.collect(1, 1)


class NanReward(TableWorld):
    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return (observation, float("nan") if self.state > 20 else reward, *rest)


class Lying(TableWorld):
    """Keeps what matters where no snapshot looks, and does not reset it."""

    secret = 0.0

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        type(self).secret += 1
        return (observation, reward + type(self).secret, *rest)


@pytest.mark.parametrize(
    ("world", "message"),
    [(NanReward, "reward at step .* is nan"), (Lying, "reset|repeat|differ")],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, world: type[TableWorld], message: str
) -> None:
    with pytest.raises(NotMeasurable, match=message):
        create(tmp_path / "study", lambda: world(branching(40), starts=2))
    assert not (tmp_path / "study").exists()


def test_policies_that_do_not_fit(tmp_path: Path) -> None:
    def three(observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 3), np.float32)

    with pytest.raises(PolicyFault, match="3"):
        create(tmp_path / "study", policy=sm.load_policy(three, kind="logits")).collect(2, 2)


def test_episodes_too_short_to_choose_from(tmp_path: Path) -> None:
    def make_short() -> gym.Env[Any, Any]:
        return TableWorld(chain(8))

    with (
        create(tmp_path / "study", make_short, settings=sm.Settings()) as study,
        pytest.raises(StudyIncomplete, match="episodes have no step to select"),
    ):
        study.collect(60, 60, workers=1)


def test_episodes_without_a_step_are_replaced(tmp_path: Path) -> None:
    """A slippery walk is often too short; the phases get the first long enough ones."""
    settings = sm.Settings(trial_plan="paper", n_values=(1, 2), sampling_error=9.0, exclude_last=30)
    with create(tmp_path / "study", make_slippery_chain, settings=settings) as study:
        status = study.collect(natural=6, spread=5, workers=1)
        assert status.moments == {"natural": 6, "spread": 5}
        assert status.episodes > 11
        before = study.tuples()
        study.collect(natural=9, spread=5, workers=1)
        after = study.tuples()
        assert list(after.indices[:6]) == list(before.indices[:6])


def test_only_the_paper_s_method_leaves_moments_out_of_the_picture(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[plot_info.HistogramInfo] = []
    draw = plots.histogram_figure
    monkeypatch.setattr(plots, "histogram_figure", lambda info: drawn.append(info) or draw(info))
    with sm.Study.open(finished) as study:
        for method in ("calibrated", "paper"):
            study.plot(tmp_path, confidence=0.9, method=method)
    assert [(info.dropped, info.drop_highest) for info in drawn] == [(0, 0), (1, 0.05)]


def test_export(finished: Path, tmp_path: Path) -> None:
    with sm.Study.open(finished) as study:
        table = study.export(tmp_path / "tuples.csv")
        lines = table.read_text().splitlines()
        assert lines[0].startswith("phase,episode,life,step,proxy,proxy_value,n,criticality")
        assert len(lines) == 1 + 26 * 3 * 3
        with pytest.raises(InvalidInput, match=r"end the name in .csv or .parquet"):
            study.export(tmp_path / "tuples.xlsx")
        with pytest.raises(InvalidInput, match="cannot write"):
            study.export(tmp_path / "no" / "such" / "folder" / "tuples.csv")
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs safemargin[parquet]")
        study.export(tmp_path / "tuples.parquet")
        assert parquet.read_table(tmp_path / "tuples.parquet").num_rows == 26 * 3 * 3


def test_a_bundled_agent_with_one_and_with_two_workers(tmp_path: Path) -> None:
    """The same with real parts: CartPole, ONNX, and policies named by text."""
    settings = sm.Settings(gamma=0.9, n_values=(1, 8), trials=20, opening=9)
    for workers in (1, 2):
        with sm.Study.create(
            tmp_path / str(workers), "CartPole-v1", "zoo:cartpole", settings
        ) as study:
            study.collect(natural=5, spread=5, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    with sm.Study.open(tmp_path / "1") as study:  # all it needs is in the study
        study.collect(natural=6, spread=5, workers=1)
        assert study.status().moments == {"natural": 6, "spread": 5}


def test_lives_are_episodes_of_one_game(tmp_path: Path) -> None:
    settings = sm.Settings(n_values=(1, 2, 4), trials=8, opening=4)
    for name, calls in {"at once": [(7, 5, 1)], "in parts": [(2, 1, 2), (7, 5, 3)]}.items():
        for natural, spread, workers in calls:
            with create(tmp_path / name, make_lives, settings=settings) as study:
                study.collect(natural=natural, spread=spread, workers=workers)
    with sm.Study.open(tmp_path / "at once") as study:
        store = study.store
        natural = [
            moment.episode for moment in store.moments() if moment.episode.phase == "natural"
        ]
        assert [(key.index, key.life) for key in natural] == [
            *[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
        ]
        assert study.status().moments == {"natural": 7, "spread": 5}
        first, second = (store.episode(key) for key in natural[:2])
        assert first.seed == second.seed
        assert second.opening == 0
        assert first.fingerprint != second.fingerprint
        steps = study.export(tmp_path / "steps.csv", steps=True, episodes=4).read_text()
        kept = [tuple(line.split(",")[:2]) for line in steps.splitlines()[1:]]
        assert list(dict.fromkeys(kept)) == [("0", "0"), ("0", "1"), ("0", "2"), ("1", "0")]
    assert contents(tmp_path / "at once") == contents(tmp_path / "in parts")


def test_a_study_can_be_read_under_any_plan_it_contains(tmp_path: Path, finished: Path) -> None:
    generous = sm.Settings(
        trial_plan="paper", n_values=(1, 4), sampling_error=1.0, min_trials=30, opening=6
    )
    strict = sm.Settings(trial_plan="paper", n_values=(1, 4), sampling_error=3.0, opening=6)
    for name, settings in {"generous": generous, "strict": strict}.items():
        with create(tmp_path / name, settings=settings) as study:
            study.collect(natural=6, spread=6, workers=1)
    with (
        sm.Study.open(tmp_path / "generous") as more,
        sm.Study.open(tmp_path / "strict") as fewer,
    ):
        # The trials of both are the same ones, so stopping earlier gives the very same numbers.
        read, made = more.tuples(plan=strict), fewer.tuples()
        np.testing.assert_array_equal(read.criticalities, made.criticalities)
        np.testing.assert_array_equal(read.half_widths, made.half_widths)
        np.testing.assert_array_equal(read.trials, made.trials)
        assert (more.tuples().trials >= read.trials).all()
        assert (more.tuples(plan=sm.Settings(trials=20)).trials == 20).all()
        with pytest.raises(InvalidInput, match=r"not under another gamma \(0.5, not 0.99\)"):
            more.tuples(plan=sm.Settings(gamma=0.5, n_values=(1, 4)))
        with pytest.raises(InvalidInput, match="plan must be Settings, got 'fixed'"):
            more.tuples(plan="fixed")  # type: ignore[arg-type]
        with pytest.raises(StudyIncomplete, match="trials of natural 0 for n = "):
            fewer.tuples(plan=generous)
    with (
        create(tmp_path / "fixed", settings=sm.Settings(n_values=(1, 4), opening=6)) as study,
        pytest.raises(InvalidInput, match="belong together; only a study with independent trials"),
    ):
        study.tuples(plan=strict)
