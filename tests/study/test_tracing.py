"""`trace`: shared starts, a divided budget, and what it says about each checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gates import ROAD
from helpers.paths import WORLDS
from helpers.worlds import always_first, careless, make_risky_road

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import InvalidInput
from safemargin.study import tracing
from safemargin.study.store import DATABASE
from safemargin.study.study import Study
from safemargin.study.tracing import checkpoint_names, in_training_order, moments_within, trace

SETTINGS = sm.Settings(n_values=(1, 2, 4), trials=12)
AGENTS = [careless, always_first]
HOW: dict[str, Any] = {"settings": SETTINGS, "scores": "logits", "workers": 1}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "studies"


@pytest.fixture(scope="module")
def found(studies: Path) -> tracing.Evolution:
    return trace(make_risky_road, AGENTS, studies, moments=20, tolerances=[0.5], **HOW)


def test_every_checkpoint_meets_the_same_starts(found: tracing.Evolution, studies: Path) -> None:
    seeds = []
    for stage in found.stages:
        with Study.open(stage.study) as study:
            traces = study.store.proxy_traces(study.default_proxy)
            seeds.append([each.seed for each in traces if each.key.phase == "natural"])
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 20
    assert [stage.moments for stage in found.stages] == [20, 20]
    assert [Path(stage.study).parent for stage in found.stages] == [studies, studies]


def test_the_careful_agent_earns_more_and_has_more_to_lose(found: tracing.Evolution) -> None:
    careless_one, careful = found.stages
    assert careful.mean_return.mean > careless_one.mean_return.mean + 0.5
    assert careful.criticality[-1].mean > careless_one.criticality[-1].mean
    for stage in found.stages:
        for known in (stage.mean_return, *stage.criticality, *stage.affordable, *stage.critical):
            assert known.low <= known.mean <= known.high
        assert all(known.low >= 0 and known.high <= 4 for known in stage.affordable)
        assert all(known.low >= 0 and known.high <= 1 for known in stage.critical)
        assert -1 <= stage.proxy_quality.low <= stage.proxy_quality.mean <= 1
    assert json.loads(json.dumps(found.to_dict()))["environment"] == found.environment


def test_finished_studies_are_used_again(found: tracing.Evolution, studies: Path) -> None:
    before = [(path / DATABASE).read_bytes() for path in sorted(studies.iterdir())]
    again = trace(make_risky_road, AGENTS, studies, moments=20, tolerances=[0.5], **HOW)
    assert again == found
    assert [(path / DATABASE).read_bytes() for path in sorted(studies.iterdir())] == before


def test_a_budget_is_divided_by_what_the_checkpoints_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds, of which planning and preparing take 2: the rest pays 0.1 + 0.3 s a moment."""

    class Plan:
        def __init__(self, each: float) -> None:
            self.pilot_seconds, self.preparation_seconds = 0.5, 0.25
            expected = each * tracing.MOMENTS + self.preparation_seconds
            self.seconds = type("Range", (), {"expected": expected})

    monkeypatch.setattr(
        tracing, "plan_study", lambda _, env, policy, **how: Plan({"a": 0.1, "b": 0.3}[policy])
    )
    assert moments_within(10.0, "road", ["a", "b"]) == 20
    assert moments_within(42.0, "road", ["a", "b"]) == 100
    with pytest.raises(
        InvalidInput, match="9 seconds suffice for 17 moments of each of the 2 .*about 10 seconds"
    ):
        moments_within(9.0, "road", ["a", "b"])


@pytest.mark.parametrize(
    ("agents", "how", "text"),
    [
        (AGENTS[:1], {}, "a trace needs at least 2 checkpoints, got 1: "),
        (("no/*.zip",), {}, r"got 1: no/\*.zip, which matches no file"),
        (AGENTS, {"moments": 30, "seconds": 5}, "either the moments of a checkpoint or the sec"),
        (AGENTS, {"moments": 5}, "a trace needs at least 20 moments, got 5"),
    ],
)
def test_wrong_requests_are_refused(
    tmp_path: Path, agents: list[Any], how: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        trace(make_risky_road, agents, tmp_path, **how)
    assert not list(tmp_path.iterdir())


def test_files_are_ordered_as_a_person_would() -> None:
    files = ["m-1000.zip", "m-900.zip", "m-final.zip", "m-20000.zip"]
    assert in_training_order(files) == ["m-900.zip", "m-1000.zip", "m-20000.zip", "m-final.zip"]
    assert checkpoint_names(["a/x.zip", "b/x.zip", "c/y.zip", np.mean, "a/f.py:agent"]) == [
        *("x (1)", "x (2)", "y", "checkpoint 4", "agent")
    ]


def test_the_command_draws_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "evolution.html"
    words = ["trace", ROAD, f"{WORLDS}:careless", f"{WORLDS}:always_first", "-o", str(page)]
    small = ["--scores", "logits", "--n", "1,2,4", "--trials", "12", "--moments", "20"]
    assert main([*words, *small, "--workers", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["evolution"] == str(page)
    assert len(answer["stages"]) == 2
    text = page.read_text()
    assert len(re.findall("<svg", text)) == 6
    assert "http" not in text
    assert (tmp_path / "evolution").is_dir()
    assert main([*words[:-1], str(tmp_path), *small]) == 2
    assert "is a folder; name the file, e.g. evolution.html" in capsys.readouterr().err


def test_the_command_measures_other_mistakes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[sm.Settings] = []

    def follow(*given: Any, settings: sm.Settings, **named: Any) -> Any:
        asked.append(settings)
        raise InvalidInput("enough is known")

    monkeypatch.setattr("safemargin.study.tracing.trace", follow)
    command = ["trace", "CartPole-v1", "a.onnx", "b.onnx", "-o", str(tmp_path / "e.html")]
    assert main([*command, "--perturb", "stuck", "--signal", "undiscounted"]) == 2
    assert main(command) == 2
    assert [(each.perturb, each.signal) for each in asked] == [
        ("stuck", "undiscounted"),
        ("random", "reward"),
    ]
