"""Studies of other mistakes than random actions: collected, refused, fitted, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.margins import margins, scores
from helpers.paths import WORLDS
from helpers.studies import contents

import safemargin as sm
from safemargin.cli import main
from safemargin.core.measured import Measured
from safemargin.errors import (
    InvalidInput,
    MarginsFileError,
    StudyIncomplete,
    StudyMismatch,
    UntrustedCode,
)
from safemargin.replay.recordings import Recordings
from safemargin.replay.trials import TrialPlayer
from safemargin.study.regrets import read_regrets
from safemargin.study.signing import code_named
from safemargin.web.report import report_info

ENVIRONMENT, POLICY = f"{WORLDS}:make_swerving", f"{WORLDS}:swerve"
FAULTS = """
def sluggish(generator, action, history):
    return 0 if generator.random() < {chance} else action
"""


def make(path: Path, **settings: Any) -> sm.Study:
    given = sm.Settings(**{"n_values": (1, 2, 4), "trials": 6, "opening": 6, **settings})
    return sm.Study.create(path, ENVIRONMENT, POLICY, given, scores="logits")


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "stuck"
    with make(path, perturb="stuck", gamma=0.9) as study:
        study.collect(natural=20, spread=6, workers=1)
    return path


def test_every_moment_is_one_exact_trial(stuck: Path) -> None:
    with sm.Study.open(stuck) as study:
        tuples = study.tuples()
        assert (tuples.trials == 1).all()
        assert study.status().estimates_left == 0
        # The held action is wrong at once and at every second step: 1, 1, 1 + γ².
        losses = {tuple(row.round(9)) for row in tuples.criticalities}
        assert (1.0, 1.0, 1.81) in losses
        # The estimates agree with the stored returns under other plans, too.
        assert read_single_runs(study) == [1.0, 1.0, 1.81]


def read_single_runs(study: sm.Study) -> list[float]:
    runs = study.tuples(estimand="single-run").runs
    assert runs is not None
    return [round(float(value), 9) for value in runs.max(axis=(0, 1))]


def test_it_refuses_to_mix(stuck: Path) -> None:
    with pytest.raises(StudyMismatch, match="made with other settings .gamma: 0.9, not 0.99"):
        make(stuck)


def test_everything_says_what_it_is_about(
    stuck: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "stuck.json"
    assert main(["fit", str(stuck), "-o", str(target)]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "how many steps with the action stuck the agent can afford" in table
    document = json.loads(target.read_text())
    assert document["measured"] == {
        "perturb": "stuck",
        "mistakes": "steps with the action stuck",
        "signal": "reward",
        "loss": "loss of discounted reward",
    }
    assert "read the 'mistakes' in 'measured'" in document["readme"]
    fitted = sm.Margins.load(target)
    assert fitted.measured == Measured("stuck")
    assert main(["margin", str(target), "--proxy", "1", "--tolerance", "0.5"]) == 0
    assert "n counts steps with the action stuck, and the tol" in capsys.readouterr().err
    main(["margin", str(target), "--proxy", "1", "--tolerance", "0.5", "--json"])
    assert json.loads(capsys.readouterr().out)["measured"]["perturb"] == "stuck"
    assert main(["status", str(stuck)]) == 0
    assert "measures     n counts steps with the action stuck, and" in capsys.readouterr().out
    with sm.Study.open(stuck, trust=True) as study:
        facts = dict(report_info(study, top=0).facts)
        assert facts["perturbations"] == "n = 1, 2, 4 steps with the action stuck"
        with pytest.raises(StudyIncomplete, match="collect one without --perturb"):
            read_regrets(study.store)
        assert study.status().regret is None


def test_calls_say_what_a_margin_counts() -> None:
    about = margins(measured=Measured("delayed:2"))
    decision = sm.Monitor(about, tolerance=1.0, call_at=2).step(scores(2.4))
    assert decision.why == "margin 1 (steps with actions delayed by 2), below 2"
    usual = sm.Monitor(margins(), tolerance=1.0, call_at=2).step(scores(2.4))
    assert usual.why == "margin 1, below 2"


def test_a_file_without_the_entry_is_about_random_actions() -> None:
    document = margins().to_dict()
    assert "measured" not in document
    assert sm.Margins.from_dict(document).measured == Measured()
    again = sm.Margins.from_dict(margins(measured=Measured("noisy:0.2")).to_dict())
    assert again.measured.mistakes == "noisy actions (0.2)"
    for damage in (
        "stuck",
        {"perturb": 3},
        {"perturb": "stuk"},
        {"perturb": "stuck", "signal": 3},
        {"perturb": "stuck", "signal": "cots"},
    ):
        with pytest.raises(MarginsFileError, match="'measured' must name|'(stuk|cots)' is unknown"):
            sm.Margins.from_dict({**document, "measured": damage})


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    path = tmp_path / "faults.py"
    path.write_text(FAULTS.format(chance=0.5))
    return path


def test_a_function_of_ones_own(
    faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers in worker processes; played again; not run for others; not when changed."""
    monkeypatch.chdir(tmp_path)
    own = f"{faults.name}:sluggish"
    for name, workers in (("one", 1), ("two", 2)):
        with make(tmp_path / name, perturb=own) as study:
            assert study.settings.perturb == f"{faults}:sluggish"
            study.collect(natural=8, spread=3, workers=workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    with sm.Study.open(tmp_path / "one") as study:
        recordings = Recordings(study)
        player = TrialPlayer(study.job(), None)
        for moment in study.store.moments()[:2]:
            for measured in study.store.measurements(moment.episode):
                for number in (0, 3):
                    played = player.play(
                        recordings.open(moment.episode.id),
                        moment.step,
                        measured.estimate.n,
                        number,
                        exact=False,
                    )
                    assert played.discounted == measured.perturbed[number]
        player.close()
        assert study.fit(0.7).settings["perturb"] == "faults.py:sluggish"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    with (
        sm.Study.open(tmp_path / "one", env=ENVIRONMENT, policy=POLICY) as study,
        pytest.raises(UntrustedCode, match="faults.py:sluggish"),
    ):
        study.job()


def test_what_a_perturbation_names_may_not_change(faults: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(FAULTS.format(chance=0.5))
    with make(tmp_path / "study", perturb=f"{other}:sluggish"):
        pass
    # Another file under the same name, as another process would find it.
    import sys

    from safemargin.core.importing import locate

    del sys.modules[locate(f"{other}:sluggish", what="test").__module__]
    other.write_text(FAULTS.format(chance=0.9))
    with (
        sm.Study.open(tmp_path / "study", trust=True) as study,
        pytest.raises(StudyMismatch, match="made with another perturbation: what .* has changed"),
    ):
        study.job()


def test_code_that_a_perturbation_names() -> None:
    for perturb in ("stuck", "policy:zoo:cartpole", "policy:/x/agent.onnx", "random"):
        assert code_named(perturb=perturb) == []
    assert code_named(perturb="policy:/x/agent.zip") == ["/x/agent.zip"]
    assert code_named(perturb="/x/f.py:g") == ["/x/f.py:g"]


def test_what_makes_no_sense_here_leaves_no_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'7' is no action of Discrete"):
        make(tmp_path / "study", perturb="stuck:7")
    assert not (tmp_path / "study").exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", ENVIRONMENT, POLICY, "--scores", "logits", "-o", str(tmp_path / "study")]
    command += ["--natural", "3", "--spread", "0", "--n", "1,2", "--workers", "1"]
    assert main([*command, "--perturb", "delayed:1"]) == 0
    assert "n counts steps with actions delayed by 1" in capsys.readouterr().out
    assert main(command) == 0  # goes on with what the study measures
    assert "n counts steps with actions delayed by 1" in capsys.readouterr().out
    assert main([*command, "--perturb", "delayed:500"]) == 2
    assert "by as long as the horizon of 459 steps" in capsys.readouterr().err


@pytest.mark.parametrize("perturb", ["worst", "worst:2"])
def test_the_worst_sequence(perturb: str, tmp_path: Path) -> None:
    given = {"perturb": perturb, "trials": sm.Settings.trials}
    with make(tmp_path / "study", **given) as study:
        study.collect(natural=8, spread=4, workers=1)
        status = study.status()
        tuples = study.tuples()  # the estimates agree with the stored returns
        with pytest.raises(InvalidInput, match="holds the worst sequence of each moment"):
            study.tuples(estimand="single-run")
        player, moment = TrialPlayer(study.job(), None), study.store.moments()[0]
        (measured, *_, longest) = study.store.measurements(moment.episode)
        recording = Recordings(study).open(moment.episode.id)
        assert measured.estimate.exact  # a beam that has dropped nothing yet
        exact = longest.estimate.exact
        if perturb == "worst":
            played = player.play(recording, moment.step, 1, 1, exact=exact)
            assert played.discounted == measured.perturbed[1]
        else:
            with pytest.raises(InvalidInput, match="none of them can be played alone"):
                player.play(recording, moment.step, 1, 1, exact=exact)
        player.close()
    assert exact == (perturb == "worst")
    assert (status.without_spread, status.regret) == (0, None)
    assert tuples.criticalities.max(axis=0).round(9).tolist() == [1.0, 1.99, 3.940399]
    assert (tuples.half_widths == 0).all()
    assert tuples.trials[0].tolist() == ([2, 4, 16] if perturb == "worst" else [2, 4, 4])


def test_a_search_that_is_too_large_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"at n = 8 these are 2\^8 = 256 rollouts"):
        make(tmp_path / "study", perturb="worst", n_values=(1, 8))
    with pytest.raises(InvalidInput, match="perturb 'worst' compares single rollouts"):
        sm.Study.create(
            tmp_path / "study",
            f"{WORLDS}:make_slippery_chain",
            f"{WORLDS}:always_first",
            {"perturb": "worst", "n_values": (1,)},
            scores="logits",
        )
    assert not (tmp_path / "study").exists()


def test_a_study_of_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"signal": "cost", "n_values": (1, 2), "opening": 6, "trials": 6}
    target = tmp_path / "study", f"{WORLDS}:make_costly", POLICY, given
    with sm.Study.create(*target, scores="logits") as study:
        study.collect(natural=12, spread=4, workers=1)
        # The agent alternates: one random action costs 2 or saves 2, with even odds.
        losses = {round(float(loss), 9) for loss in study.tuples().criticalities[:, 0]}
        assert losses == {1.0, -1.0}
        player, moment = TrialPlayer(study.job(), None), study.store.moments()[0]
        (measured, *_) = study.store.measurements(moment.episode)
        recording = Recordings(study).open(moment.episode.id)
        played = player.play(recording, moment.step, 1, 1, exact=True)
        player.close()
        assert played.discounted == measured.perturbed[1]
        fitted = study.fit(0.8)
        assert dict(report_info(study, top=0).facts)["losses"] == "rise of discounted cost"
    assert sm.Margins.from_dict(fitted.to_dict()).measured == Measured(signal="cost")
    assert "read the 'loss' there" in fitted.to_dict()["readme"]
    assert main(["status", str(tmp_path / "study")]) == 0
    assert "the tolerance is a rise of discounted cost" in capsys.readouterr().out
    with sm.Study.create(*target[:3], {**given, "signal": "reward"}, scores="logits") as added:
        assert added.measured == [("random", "cost"), ("random", "reward")]
        assert added.status().estimates == 0


PRICED = """
import os
from helpers.worlds import Costly, TableWorld, swerving


class Priced(Costly):
    def step(self, action):
        *before, info = super().step(action)
        return *before, {**info, "cost": float(os.environ["PRICE"]) * info["cost"]}


def make():
    return Priced(TableWorld(swerving(60), starts=5))
"""


def test_a_cost_that_has_changed_is_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "priced.py").write_text(PRICED)
    given = {"signal": "cost", "n_values": (1, 2), "opening": 6, "trials": 6}
    target = tmp_path / "study", f"{tmp_path / 'priced.py'}:make", POLICY, given
    monkeypatch.setenv("PRICE", "1")
    with sm.Study.create(*target, scores="logits") as study:
        study.collect(natural=4, spread=0, workers=1)
        study.collect(natural=5, spread=0, workers=1)  # the same price
        monkeypatch.setenv("PRICE", "100")
        with pytest.raises(
            StudyMismatch, match="the environment or the policy behaves differently"
        ):
            study.collect(natural=8, spread=0, workers=1)


def test_a_cost_that_the_environment_does_not_give_leaves_no_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the info of step 1 has no 'cost'"):
        make(tmp_path / "study", signal="cost")
    assert not (tmp_path / "study").exists()


def test_studies_that_measure_other_things_hold_the_same_moments(
    stuck: Path, tmp_path: Path
) -> None:
    with make(tmp_path / "random", gamma=0.9) as study:
        study.collect(natural=20, spread=6, workers=1)
    ours, theirs = contents(tmp_path / "random"), contents(stuck)
    for table in ("episodes", "episode_proxies", "moments", "moment_proxies"):
        assert ours[table] == theirs[table], table
    assert ours["estimates"] != theirs["estimates"]
