"""Studies of losses against a reference: collected, continued, refused, fitted, and named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.margins import margins, scores
from helpers.paths import WORLDS
from helpers.studies import contents

import safemargin as sm
from safemargin.cli import main
from safemargin.core.importing import locate
from safemargin.core.measured import Measured
from safemargin.errors import InvalidInput, StudyIncomplete, StudyMismatch, UntrustedCode
from safemargin.replay.recordings import Recordings
from safemargin.replay.trials import TrialPlayer
from safemargin.study.regrets import read_regrets

# The agent takes the wrong action at every step, and the reference never does.
ENVIRONMENT, AGENT = f"{WORLDS}:make_swerving", f"{WORLDS}:wrong_way"
EXPERT = """
from helpers.worlds import swerve

def expert(rows):
    return {sign}swerve(rows)

expert.kind = "logits"
"""


@pytest.fixture
def expert(tmp_path: Path) -> Path:
    path = tmp_path / "expert.py"
    path.write_text(EXPERT.format(sign=""))
    return path


def make(path: Path, reference: Any, **settings: Any) -> sm.Study:
    given = {"n_values": (1, 2), "opening": 6, "gamma": 0.9, "reference": reference, **settings}
    return sm.Study.create(path, ENVIRONMENT, AGENT, given)


def test_the_same_numbers_in_workers_and_in_what_if(expert: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        with make(tmp_path / name, f"{expert}:expert") as study:
            study.collect(natural=4, spread=2, workers=workers, more=[("stuck", "reward")])
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    with sm.Study.open(tmp_path / "one") as study:
        assert study.tuples().criticalities.round(9).tolist() == [[0.5, 0.95]] * 6
        player = TrialPlayer(study.job(), None)
        moment = study.store.moments()[0]
        recording = Recordings(study).open(moment.episode.id)
        for measured in study.store.measurements(moment.episode):
            for number in (0, 1):
                played = player.play(
                    recording, moment.step, measured.estimate.n, number, exact=True
                )
                assert played.discounted == measured.perturbed[number]
        player.close()
        with pytest.raises(StudyIncomplete, match="collect one without --reference"):
            read_regrets(study.store)
    with sm.Study.open(tmp_path / "one", perturb="stuck") as study:
        # A held wrong action is right at the next step.
        assert study.tuples().criticalities.round(9).max(axis=0).tolist() == [1.0, 1.0]


def test_everything_says_who_acts_afterwards(
    expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["collect", ENVIRONMENT, AGENT, "-o", str(tmp_path / "study"), "--n", "1,2"]
    command += ["--natural", "20", "--spread", "0", "--workers", "1", "--opening", "6"]
    assert main([*command, "--reference", f"{expert}:expert"]) == 0
    words = "a loss of discounted reward with expert.py:expert acting afterwards"
    said = " ".join(capsys.readouterr().out.split())
    assert f"measures n counts random actions, and the tolerance is {words} episodes" in said
    assert main(command) == 2
    assert "was made with other settings (reference: " in capsys.readouterr().err
    target = tmp_path / "margins.json"
    assert main(["fit", str(tmp_path / "study"), "-o", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["measured"]["reference"] == "expert.py:expert"
    assert document["settings"]["reference"] == "expert.py:expert"
    assert main(["margin", str(target), "--proxy", "1", "--tolerance", "0.5"]) == 0
    assert words in " ".join(capsys.readouterr().err.split())
    monitor = sm.Monitor(
        margins(measured=Measured(reference="lookahead:9")), tolerance=1.0, call_at=2
    )
    assert "with a lookahead of 9 steps acting afterwards" in monitor.step(scores(2.4)).why


def test_it_may_not_change_or_run_for_others(
    expert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "study", f"{expert}:expert"):
        pass
    del sys.modules[locate(f"{expert}:expert", what="test").__module__]
    expert.write_text(EXPERT.format(sign="2 * "))
    with (
        sm.Study.open(tmp_path / "study") as study,
        pytest.raises(StudyMismatch, match="made with another reference: the policy that .* has"),
    ):
        study.job()
    with pytest.raises(StudyMismatch, match="made with another reference"):
        make(tmp_path / "study", f"{expert}:expert")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    with (
        sm.Study.open(tmp_path / "study", env=ENVIRONMENT, policy=AGENT) as study,
        pytest.raises(UntrustedCode, match="expert.py:expert"),
    ):
        study.job()


def test_what_makes_no_sense_leaves_no_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="reference 'zoo:cartpole' cannot take over"):
        make(tmp_path / "study", "zoo:cartpole")
    with pytest.raises(InvalidInput, match="reference 'lookahead:3' tries actions in one future"):
        make(tmp_path / "study", "lookahead:3", action_choice="sampled")
    assert not (tmp_path / "study").exists()


def test_what_a_lookahead_tries_is_counted(tmp_path: Path) -> None:
    steps = []
    for reference in (None, "lookahead:5"):
        with make(tmp_path / str(reference), reference) as study:
            study.collect(natural=2, spread=0, engine="local")
            steps.append(study.status().simulator_steps)
    assert steps[1] > 4 * steps[0]  # two actions of five steps for each step
