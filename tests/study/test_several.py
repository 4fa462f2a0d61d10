"""Several mistakes and losses in one study: the numbers of separate studies, at shared moments."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import WORLDS

import safemargin as sm
from safemargin.cli import main
from safemargin.core.measured import Measured, split_perturbations
from safemargin.errors import InvalidInput, StudyMismatch, UntrustedCode
from safemargin.study.signing import is_signed

POLICY = f"{WORLDS}:swerve"
PAIRS = [
    ("random", "reward"),
    ("random", "termination"),
    ("random", "cost"),
    ("stuck", "cost"),
    ("stuck", "reward"),
    ("worst:3", "reward"),
    ("worst:3", "cost"),
]
Numbers = dict[tuple[str, int], tuple[Any, bytes, bytes]]


def create(path: Path, environment: str, **settings: Any) -> sm.Study:
    given = sm.Settings(
        **{"n_values": (1, 2, 4), "trials": 5, "opening": 6, "gamma": 0.9, **settings}
    )
    return sm.Study.create(path, f"{WORLDS}:{environment}", POLICY, given, scores="logits")


def numbers(study: sm.Study) -> Numbers:
    """Everything measured, bit for bit."""
    return {
        (str(key), found.estimate.n): (
            found.estimate,
            found.perturbed.tobytes(),
            found.unperturbed.tobytes(),
        )
        for key, found in study.store.all_measurements()
    }


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "study"
    with create(path, "make_costly") as study:
        study.collect(natural=4, spread=2, workers=1, more=PAIRS)
    return path


@pytest.mark.parametrize("pair", PAIRS[2::2], ids=" ".join)
def test_the_numbers_are_those_of_separate_studies(
    several: Path, tmp_path: Path, pair: tuple[str, str]
) -> None:
    perturb, signal = pair
    with create(tmp_path / "alone", "make_costly", perturb=perturb, signal=signal) as alone:
        alone.collect(natural=4, spread=2, workers=1)
        with sm.Study.open(several, perturb=perturb, signal=signal, trust=True) as shared:
            assert shared.settings == alone.settings
            assert numbers(shared) == numbers(alone)
            assert len(numbers(shared)) == 6 * 3
            assert shared.store.moments() == alone.store.moments()
            assert (shared.tuples().criticalities == alone.tuples().criticalities).all()
            assert shared.settings.measured == Measured(perturb, signal)


@pytest.mark.parametrize("plan", ["fixed", "paper", "anytime"])
def test_where_everything_is_random_too(tmp_path: Path, plan: Any) -> None:
    more: dict[str, Any] = {"trial_plan": plan}
    if plan != "fixed":  # the signals stop after different numbers of trials
        more |= {"trials": 48, "max_trials": 60, "sampling_error": 0.3}
    if plan == "anytime":
        more |= {"largest_loss": 40.0, "smallest_loss": -40.0}
    pairs = [
        (perturb, signal) for perturb in ("random", "stuck") for signal in ("reward", "termination")
    ]
    with create(tmp_path / "together", "make_slipping", **more) as together:
        together.collect(natural=1, spread=0, workers=1, more=pairs)
    trials = set()
    for number, (perturb, signal) in enumerate(pairs):
        about = {"perturb": perturb, "signal": signal}
        with create(tmp_path / str(number), "make_slipping", **more, **about) as alone:
            alone.collect(natural=1, spread=0, workers=1)
            with sm.Study.open(tmp_path / "together", **about, trust=True) as shared:
                assert numbers(shared) == numbers(alone)
                trials.add(tuple(shared.tuples().trials.ravel()))
    assert len(trials) > 1 or plan != "paper"


def test_a_later_collection_adds_at_the_same_moments(several: Path, tmp_path: Path) -> None:
    path = tmp_path / "study"
    with create(path, "make_costly") as study:
        study.collect(natural=4, spread=2, workers=1)
        first = numbers(study)
    with create(path, "make_costly", perturb="stuck") as added:
        assert added.settings.perturb == "stuck"
        assert added.status().estimates == 0
        added.collect(natural=4, spread=2, workers=2)
        assert added.status().estimates_left == 0
        assert added.measured == [("random", "reward"), ("stuck", "reward")]
        with sm.Study.open(several, perturb="stuck", trust=True) as at_once:
            assert numbers(added) == numbers(at_once)
    with sm.Study.open(path, trust=True) as again:
        assert numbers(again) == first
        assert again.settings.perturb == "random"
        again.collect(natural=5, spread=2, workers=1)  # the first ones only
    with sm.Study.open(path, perturb="stuck") as behind:
        assert len(numbers(behind)) == 6 * 3
        assert len(behind.store.moments()) == 7


def test_an_interrupted_collection_continues(several: Path, tmp_path: Path) -> None:
    path = tmp_path / "study"

    class Stopped(Exception):
        pass

    class Progress:
        left = 9

        def stage(self, name: str, *, total: int, done: int) -> None:
            pass

        def advance(self, steps: int) -> None:
            self.left -= 1
            if self.left == 0:
                raise Stopped

    with create(path, "make_costly") as study, contextlib.suppress(Stopped):
        study.collect(natural=4, spread=2, workers=1, more=PAIRS, progress=Progress())
    with sm.Study.open(path) as study:
        study.collect(natural=4, spread=2, workers=1, more=PAIRS)
    for perturb, signal in PAIRS:
        with (
            sm.Study.open(path, perturb=perturb, signal=signal) as found,
            sm.Study.open(several, perturb=perturb, signal=signal) as expected,
        ):
            assert numbers(found) == numbers(expected)


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "study", tmp_path / "margins.json"
    base = [
        "collect",
        f"{WORLDS}:make_costly",
        POLICY,
        "-o",
        path,
        "--scores",
        "logits",
        "--n",
        "1,2",
    ]
    base += ["--gamma", "0.9", "--natural", "19", "--spread", "1", "--workers", "1"]
    assert run(*base, "--perturb", "random,stuck", "--signal", "reward", "--signal", "cost") == 0
    printed = capsys.readouterr().out
    assert (
        "also         n counts steps with the action stuck, and the tolerance is a rise of disc"
        in printed
    )
    assert "(--perturb stuck --signal cost)" in printed
    assert run(*base, "--json") == 0  # goes on with all that there is
    status = json.loads(capsys.readouterr().out)
    assert [(one["perturb"], one["signal"]) for one in status["measured"]] == [
        ("random", "reward"), ("random", "cost"), ("stuck", "reward"), ("stuck", "cost"),
    ]  # fmt: skip
    about = ["--perturb", "stuck", "--signal", "cost"]
    assert run("fit", path, *about, "-o", target) == 0
    capsys.readouterr()
    assert sm.Margins.load(target).measured == Measured("stuck", "cost")
    table = tmp_path / "tuples.csv"
    for command in (
        ["status", path], ["validate", path], ["compare", path], ["export", path, "-o", table],
        ["report", path, "-o", tmp_path / "report.html"], ["fidelity", path, "--workers", "1"],
    ):  # fmt: skip
        assert run(*command, *about) in (0, 1), command
    capsys.readouterr()
    assert run("fit", path, "--perturb", "delayed:2") == 2
    refusal = capsys.readouterr().err
    assert "does not measure perturb 'delayed:2'; it measures perturb 'random' with sig" in refusal
    assert "`safemargin collect` with --perturb and --signal adds more" in refusal
    assert run(*base, "--perturb", "stuck,delayed:999") == 2
    assert "delays actions by as long as the horizon" in capsys.readouterr().err


def test_a_plan_of_several_adds_up_and_writes_nothing(
    several: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["collect", f"{WORLDS}:make_costly", POLICY, "--scores", "logits", "--n", "1,2,4"]
    base += ["--trials", "5", "--opening", "6", "--gamma", "0.9", "--engine", "local", "--plan"]
    base += ["--natural", "40", "--spread", "20", "--plan-moments", "4"]
    asked = ["--perturb", "random,stuck", "--signal", "reward,cost"]
    new = tmp_path / "study"
    assert main([*base, "-o", str(new), *asked, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not new.exists()
    pairs = {(one["perturb"], one["signal"]): one for one in plan["pairs"]}
    random, stuck = pairs["random", "reward"], pairs["stuck", "reward"]
    assert random["trials"]["expected"] == 60 * (2 + 4 + 16)  # every sequence of two actions
    assert stuck["trials"]["expected"] == 60 * 3
    # The second loss comes from the trials of the first.
    assert (pairs["random", "cost"]["plan"], pairs["stuck", "cost"]["plan"]) == (None, None)
    spent = random["worker_seconds"]["expected"] + stuck["worker_seconds"]["expected"]
    spent += plan["episode_seconds"]["expected"]
    prepared = random["plan"]["preparation_seconds"]
    assert plan["seconds"]["expected"] == pytest.approx(prepared + spent / plan["workers"])
    assert main([*base, "-o", str(new), *asked]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "steps with the action stuck: loss of discounted reward" in table
    assert "shares them" in table
    # What a study does not measure is planned without its episodes, and not added to it.
    with sm.Study.open(several) as study:
        before = study.measured
    one = ["--perturb", "delayed:2", "--signal", "reward", "--json"]
    assert main([*base, "-o", str(several), *one]) == 0
    stages = json.loads(capsys.readouterr().out)["forecast"]["stages"]
    assert [stage["n"] for stage in stages] == [1, 2, 4]
    with sm.Study.open(several) as study:
        assert study.measured == before


def test_what_makes_no_sense_adds_nothing(several: Path) -> None:
    with sm.Study.open(several, trust=True) as study:
        before = study.measured
        for pair, match in (
            (("stuck:7", "reward"), "is no action of"),
            (("stuck", "cost:fuel"), "has no 'fuel'"),
        ):
            with pytest.raises(InvalidInput, match=match):
                study.collect(natural=4, spread=2, workers=1, more=[("dropped", "reward"), pair])
        assert study.measured == before


def test_an_ambiguous_question(several: Path, tmp_path: Path) -> None:
    with sm.Study.open(several, signal="cost") as chosen:
        assert chosen.settings.measured == Measured("random", "cost")
    path = tmp_path / "study"
    with create(path, "make_costly") as study:
        study.collect(natural=2, spread=0, workers=1, more=[("stuck", "cost"), ("dropped", "cost")])
    with pytest.raises(InvalidInput, match="measures several things with signal 'cost'; it measu"):
        sm.Study.open(path, signal="cost")
    with sm.Study.open(path, perturb="dropped") as only:
        assert only.settings.measured == Measured("dropped", "cost")


def test_worst_where_something_is_random(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_slipping") as study:
        study.collect(natural=1, spread=0, workers=1)
        with pytest.raises(InvalidInput, match="it takes a deterministic environment and a greedy"):
            study.collect(natural=1, spread=0, workers=1, more=[("worst:2", "reward")])
        assert study.measured == [("random", "reward")]


def test_code_in_an_added_perturbation_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "faults.py"
    fault.write_text("def none(generator, action, history):\n    return action\n")
    path = tmp_path / "study"
    with create(path, "make_costly") as study:
        study.collect(natural=1, spread=0, workers=1, more=[(f"{fault}:none", "reward")])
        assert is_signed(study.store)
    with sm.Study.open(path, perturb="faults.py:none") as study:
        assert study.settings.measured.mistakes == "actions of faults.py:none"
        study.store.set_meta("more", [{"perturb": f"{fault}:evil", "signal": "reward"}])
        assert not is_signed(study.store)
    with (
        sm.Study.open(path) as study,
        pytest.raises(UntrustedCode, match="would run .*, and is not signed by you"),
    ):
        study.collect(natural=1, spread=0, workers=1)


def test_a_changed_perturbation_is_refused(tmp_path: Path) -> None:
    fault = tmp_path / "changing.py"
    fault.write_text("def own(generator, action, history):\n    return action\n")
    path = tmp_path / "study"
    pair = (f"{fault}:own", "reward")
    with create(path, "make_costly") as study:
        study.collect(natural=1, spread=0, workers=1, more=[pair])
        fault.write_text("def own(generator, action, history):\n    return 1\n")
        with pytest.raises(StudyMismatch, match="what .*changing.py:own' names has changed since"):
            study.collect(natural=1, spread=0, workers=1, more=[pair])


def test_lists_with_commas() -> None:
    assert split_perturbations(["random,stuck:0.5,-1,worst", "stuck,random"]) == [
        "random", "stuck:0.5,-1", "worst", "stuck",
    ]  # fmt: skip


def test_a_study_read_only_for_one_pair_learns_apart(several: Path) -> None:
    with sm.Study.open(several, perturb="stuck") as study, sm.Study.open(several) as other:
        key = study.store.moments()[0].episode
        study.store.set_learned({"probe": {}, "found": {}, "groups": {}}, {key: 2.5})
        assert "learned" in study.proxies
        assert "learned" not in other.proxies
        assert not other.store.meta("learned")
        study.store.set_learned(None, {})
        assert study.proxies == other.proxies
