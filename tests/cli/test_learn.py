"""The command `learn`, and the fits that follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import WORLDS
from helpers.small_policies import write_careful_driver

from safemargin.cli import main

SIZE = ["--natural", "80", "--spread", "10", "--n", "1,2,4", "--gamma", "0.5", "--workers", "1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("road")
    driver = write_careful_driver(folder / "driver.onnx")
    road = f"{WORLDS}:make_risky_road"
    assert main(["collect", road, str(driver), "-o", str(folder / "study"), *SIZE]) == 0
    return folder / "study"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("safemargin.margins.learned.models.MEMBERS", 1)

    def run_it(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run_it


def test_learn_then_fit_with_either_promise(run: Any, study: Path, tmp_path: Path) -> None:
    status, out, err = run("learn", study, "--tolerance", "0.2", "--workers", "1", "--no-traces")
    assert status == 0, err
    assert "learned from 90 moments" in out
    assert "at a tolerance of 0.2 it grants" in out
    means = []
    for promise in ("bound", "margin"):
        file = tmp_path / f"{promise}.json"
        words = ["--proxy", "learned", "--promise", promise, "--tolerance", "0.2"]
        status, out, err = run("fit", study, "-o", file, *words, "--json")
        assert status == 0, err
        document = json.loads(out)
        assert document["probe"]["about"]["moments"] == 90
        means.append(sum(vector["margin"] for vector in document["test_vectors"]))
    assert means[0] > 0
    status, out, _ = run("learn", study, "--tolerance", "0.2", "--no-traces", "--json")
    assert status == 0
    assert json.loads(out)["granted"] > json.loads(out)["granted_before"]


def test_bad_input_is_one_sentence(run: Any, study: Path, tmp_path: Path) -> None:
    for words, text in (
        (["learn", study, "--labels", "-1"], "labels must be at least 0"),
        (["learn", study, "--tolerance", "0"], "tolerance must be above 0"),
        (["learn", tmp_path], "there is no study"),
        (["fit", study, "--promise", "margin"], "tolerances that you name: --tolerance"),
        (["fit", study, "--promise", "margin", "--method", "paper"], "fits a bound"),
        (["fit", study, "--promise", "bet"], "--promise"),
    ):
        status, _, err = run(*words, *(["-o", tmp_path / "m.json"] if words[0] == "fit" else []))
        assert status == 2
        assert text in err
        assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
