"""The worked example of a gate: its files belong together, and the gate tells the agents apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.paths import ROOT
from onnx import numpy_helper

import safemargin as sm
from safemargin.study.gating import baseline_of, gate
from safemargin.validation.baseline import Baseline

EXAMPLE = ROOT / "examples" / "gate"
CHECKPOINTS = EXAMPLE / "checkpoints"
AGENTS = {"old": "acrobot-65536", "new": "acrobot-131072", "damaged": "damaged"}
SAID: dict[str, Any] = {"tolerances": [10], "matters": {"return": 10}}


@pytest.mark.parametrize("name", AGENTS)
def test_each_file_belongs_to_its_agent(name: str) -> None:
    policy = sm.load_policy(CHECKPOINTS / f"{AGENTS[name]}.onnx")
    assert Baseline.load(EXAMPLE / f"{name}.json").policy["identity"] == policy.identity
    assert (EXAMPLE / f"{name}.json").stat().st_size < 30_000


def test_the_damaged_agent_lost_the_head_of_one_action() -> None:
    whole, damaged = (
        {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
        for path in (CHECKPOINTS / "acrobot-131072.onnx", CHECKPOINTS / "damaged.onnx")
    )
    other = {name for name in whole if not np.array_equal(whole[name], damaged[name])}
    assert {whole[name].shape for name in other} == {(3, 64), (3,)}
    for name in other:
        assert not damaged[name][0].any()
        assert np.array_equal(damaged[name][1:], whole[name][1:])


def test_the_healthy_checkpoint_passes() -> None:
    result = gate(EXAMPLE / "new.json", EXAMPLE / "old.json", **SAID)
    assert (result.paired, result.verdict) == (True, "passed")


def test_the_damaged_checkpoint_is_found() -> None:
    result = gate(EXAMPLE / "damaged.json", EXAMPLE / "old.json", **SAID)
    assert result.verdict == "worse"
    assert {each.kind for each in result.checks if each.verdict == "worse"} >= {"return"}


def test_the_files_can_be_made_again(tmp_path: Path) -> None:
    stored = Baseline.load(EXAMPLE / "new.json")
    settings = sm.Settings.from_mapping(stored.settings)
    agent = str(CHECKPOINTS / "acrobot-131072.onnx")
    with sm.Study.create(tmp_path / "study", "Acrobot-v1", agent, settings) as study:
        study.collect(natural=2, spread=0, workers=1)
        again = baseline_of(study)
    assert again.game_seeds.tolist() == stored.game_seeds[:2].tolist()
    assert again.returns.tolist() == stored.returns[:2].tolist()
    assert again.proxies == pytest.approx(stored.proxies[:2], rel=1e-4)
    # On another machine, a score may be rounded otherwise, and a trial end a step later.
    assert again.losses == pytest.approx(stored.losses[:2], abs=0.5)
