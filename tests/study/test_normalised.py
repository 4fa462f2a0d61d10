"""From the command line to a study: an agent is measured with its VecNormalize statistics."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from helpers.small_policies import HAVE_SB3, train_normalised

import safemargin as sm
from safemargin.cli import main
from safemargin.environments.doctor.returns import UnlikeTraining

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")

SMALL = ["--natural", "2", "--spread", "1", "--n", "1,2", "--trials", "4", "--workers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("trained")
    train_normalised(found)
    return found


@pytest.mark.parametrize("command", ["doctor", "collect"])
def test_forgotten_statistics_stop_the_command(
    folder: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / "model.zip")
    more = ["--policy", model] if command == "doctor" else [model, "-o", str(tmp_path / "study")]
    assert main([command, "Pendulum-v1", *more]) == 2
    assert f"add --normalize {folder / 'vecnormalize.pkl'}" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_study_remembers_the_statistics(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, statistics = folder / "model.zip", folder / "vecnormalize.pkl"
    command = ["collect", "Pendulum-v1", str(model), "-o", str(tmp_path / "study"), *SMALL]
    assert main([*command, "--normalize", str(statistics)]) == 0
    capsys.readouterr()
    expected = sm.load_policy(model, normalize=statistics).identity
    with sm.Study.open(tmp_path / "study") as study:
        assert study.policy["identity"] == expected
        assert study.policy["source"] == f"normalized:{statistics}:{model}"
        assert study.policy["description"] == f"{model}, normalised with vecnormalize.pkl"
        assert study.job().policy.identity == expected
        study.collect(3, 1, workers=1)
    # The same command without the option is another agent, and refused.
    assert main([*command, "--normalize", "none"]) == 2
    assert "was made with another policy" in capsys.readouterr().err


def test_the_doctor_shows_the_mean_return_beside_that_of_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "Pendulum-v1", "--policy", str(folder / "model.zip")]
    options = ["--normalize", str(folder / "vecnormalize.pkl")]
    assert main([*arguments, *options]) == 0
    said = capsys.readouterr().out
    assert "mean return over 5 episodes: -" in said
    assert "the model file remembers -" in said
    assert main([*arguments, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_return"] < 0


def test_an_agent_that_earns_less_than_in_training_is_noted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = sm.load_policy(folder / "model.zip", normalize=folder / "vecnormalize.pkl")
    policy.trained_returns = (-200.0, -210.0, -190.0)
    with pytest.warns(UnlikeTraining, match="this may not be the agent that was trained"):
        sm.Study.create(tmp_path / "unlike", "Pendulum-v1", policy, {"n_values": [1]}).close()
    policy.trained_returns = (-9000.0, -9100.0, -9050.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sm.Study.create(tmp_path / "alike", "Pendulum-v1", policy, {"n_values": [1]}).close()
