"""The GitHub Action, without GitHub: its script is run as a runner would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.gates import DECIDED, collect_road
from helpers.paths import ROOT


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("action")
    collect_road(folder / "old", "always_first")
    collect_road(folder / "bad", "careless")
    return folder


def run(action: dict[str, Any], folder: Path, **given: str) -> tuple[int, str, str]:
    """Run the last step; return its exit status, what it set as outputs, and the summary."""
    step = action["runs"]["steps"][-1]
    inputs = {name: given.get(name, of.get("default")) for name, of in action["inputs"].items()}
    outputs, summary = folder / "outputs", folder / "summary"
    outputs.touch()
    environment = {
        name: str(inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")])
        for name, text in step["env"].items()
    }
    found = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={
            **os.environ,
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        cwd=folder,
        check=False,
        timeout=120,
    )
    return found.returncode, outputs.read_text(), summary.read_text()


@pytest.mark.parametrize(
    ("candidate", "given", "status", "verdict"),
    [
        ("old", {"options": " ".join(DECIDED)}, 0, "passed"),
        ("bad", {"options": " ".join(DECIDED)}, 1, "worse"),
        ("missing", {}, 2, "bad input"),
        ("old", {}, 3, "cannot tell"),
        ("old", {"undecided": "pass"}, 0, "cannot tell"),
    ],
)
def test_the_action_ends_as_the_gate_does(
    action: dict[str, Any],
    runs: Path,
    tmp_path: Path,
    candidate: str,
    given: dict[str, str],
    status: int,
    verdict: str,
) -> None:
    sides = {"candidate": str(runs / candidate), "baseline": str(runs / "old")}
    found, outputs, summary = run(action, tmp_path, **sides, **given)
    assert (found, outputs) == (status, f"verdict={verdict}\n")
    assert "## safemargin gate" in summary
    assert (tmp_path / "safemargin-gate.xml").exists()
    assert (tmp_path / "safemargin-gate.html").exists() == (verdict != "bad input")


def test_the_action_is_composite_and_installs_itself(action: dict[str, Any]) -> None:
    assert action["runs"]["using"] == "composite"
    assert "$GITHUB_ACTION_PATH" in action["runs"]["steps"][0]["run"]
    assert action["outputs"]["verdict"]["value"] == "${{ steps.gate.outputs.verdict }}"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
