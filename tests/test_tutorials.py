"""Each tutorial is followed from its first block to its last when the site is built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fleet_server import TOKEN, running
from helpers.pages import SMALLER, blocks, follow, with_the_site
from helpers.paths import ROOT

import safemargin as sm
from safemargin.cli import main


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    with_the_site()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return tmp_path


def test_the_tutorial_on_a_cluster(
    alone: Path,
    ray_cluster: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    joins = f"--engine ray --address {ray_cluster} --workers 1"
    monkeypatch.setitem(SMALLER, "--engine ray --address 127.0.0.1:6390", joins)
    follow("docs/tutorials/cluster.md")
    assert "20 of 20 moments measured for every n" in capsys.readouterr().out
    assert (alone / "report.html").exists()


def test_the_tutorial_on_an_environment_of_your_own(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow("docs/tutorials/environment.md")
    said = capsys.readouterr().out
    assert "Ferry can be measured by snapshot" in said
    assert "the layer that leaks is Tidal, which keeps state outside its attributes" in said
    assert "Tidal can be measured by replay" in said
    assert (alone / "moments.csv").exists()
    assert "data:image/jpeg;base64," in (alone / "report.html").read_text()


def test_the_tutorial_on_a_world_in_jax(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax", reason="needs safemargin[jax]")
    follow("docs/tutorials/jax.md")
    said = capsys.readouterr().out
    assert "Ridge can be measured by snapshot" in said
    assert "Forgetful cannot be measured: step is not a pure function" in said
    assert "data:image/jpeg;base64," in (alone / "report.html").read_text()


def test_the_tutorial_on_stable_baselines3(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stable_baselines3")
    follow("docs/tutorials/sb3.md")
    said = capsys.readouterr().out
    assert "CartPole-v1 can be measured by snapshot" in said
    assert re.search(r"\d+ of \d+ decisions can afford no random action", said)
    assert (alone / "report.html").exists()


def test_the_tutorial_on_a_fleet(alone: Path) -> None:
    page = "docs/tutorials/fleet.md"
    follow(page, until="safemargin watch")
    script = next(block for block in blocks.blocks_of(ROOT, page) if block.name == "agent.py")
    Path("agent.py").write_text(script.text, "utf-8")
    served = next(
        command
        for block in blocks.blocks_of(ROOT, page)
        for command in block.commands()
        if command.startswith("safemargin watch")
    )
    words = served.replace(" --log watch.db --port 8718", "").split()[2:]
    with running(alone, *words) as server:
        here = {"WATCH": f"http://127.0.0.1:{server.port}", "EPISODES": "1"}
        agent = [sys.executable, "agent.py", "cart 1"]
        environment = {**os.environ, **here, "SAFEMARGIN_TOKEN": TOKEN}
        subprocess.run(agent, env=environment, check=True, timeout=300)
    assert main(["audit", "watch.db"]) == 0
    assert main(["watch", "--replay", "watch.db", "-o", "replay.html"]) == 0
    with sm.AuditLog("watch.db") as log:
        assert "cart 1" in {entry.agent for entry in log}
