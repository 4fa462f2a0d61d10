"""What a round of benchmarks writes: a quick one must not replace the figures of a whole one."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that all benchmarks write with; the committed figures are a copy of ours."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    committed = tmp_path / "results.json"
    committed.write_bytes(module.COMMITTED.read_bytes())
    monkeypatch.setattr(module, "COMMITTED", committed)
    return module


def record(module: Any, *words: str) -> None:
    parser = argparse.ArgumentParser()
    module.add_options(parser, quick="a reduced round")
    module.Results("python benchmarks/bench.py", parser.parse_args(words)).record("speed", 7.0, 5.0)


def test_a_quick_round_writes_no_file(results: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = results.COMMITTED.read_bytes()
    record(results, "--quick")
    assert results.COMMITTED.read_bytes() == before
    assert "7.000   goal 5" in capsys.readouterr().out


def test_a_quick_round_writes_where_it_is_told_to(results: Any, tmp_path: Path) -> None:
    before = results.COMMITTED.read_bytes()
    record(results, "--quick", "--output", str(tmp_path / "quick.json"))
    assert results.COMMITTED.read_bytes() == before
    (entry,) = json.loads((tmp_path / "quick.json").read_text())
    assert (entry["name"], entry["value"]) == ("speed", 7.0)
    assert entry["command"].endswith(" --quick")


def test_a_whole_round_replaces_its_own_figures_only(results: Any) -> None:
    before = json.loads(results.COMMITTED.read_text())
    record(results)
    after = json.loads(results.COMMITTED.read_text())
    assert after[:-1] == before
    assert after[-1]["name"] == "speed"


def test_make_runs_the_quick_round() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("bench-quick:")[2].partition("\n\n")[0]
    assert recipe.count(" --quick") == recipe.count("benchmarks/") == 1
