"""The fixture `safemargin_gate`, in a project that has nothing to do with these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.roads import Walker, study

TESTS = """
def test_healthy(safemargin_gate):
    matters = {"return": 0.2}
    result = safemargin_gate("same.json", "old.json", tolerances=[0.2], matters=matters)
    result.check()

def test_damaged(safemargin_gate):
    safemargin_gate(candidate="bad.json", baseline="old.json", tolerances=[0.2]).check()

def test_missing(safemargin_gate):
    safemargin_gate(candidate="none.json", baseline="old.json")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pytest.ini").touch()
    (folder / "tests").mkdir()
    (folder / "tests" / "test_agent.py").write_text(TESTS)
    study(Walker(), 0).save(folder / "old.json")
    study(Walker(slips=0.018), 0).save(folder / "same.json")
    study(Walker(exposure=2.0), 0).save(folder / "bad.json")
    return folder


def test_a_test_fails_where_the_checkpoint_is_worse(project: Path) -> None:
    """Paths are those of the project, wherever pytest was started."""
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_agent.py"],
        cwd=project / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    ).stdout
    assert "2 failed, 1 passed" in said
    assert "GateClosed: Walker(exposure=2.0" in said
    assert "worse: " in said
    assert "none.json does not exist; name a study's folder" in said
    assert "gating.py" not in said.partition("test_missing")[0].partition("test_damaged")[2]


def test_installing_the_package_makes_no_test_run_slower(project: Path) -> None:
    """Pytest loads the plugin in every project: nothing heavy may come with it."""
    code = (
        "import sys, safemargin.study.pytest_plugin\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'numpy', 'scipy', 'gymnasium', 'matplotlib', 'onnxruntime', 'rich', 'cyclopts'}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('safemargin')))"
    )
    heavy, ours = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split("\n")[:2]
    assert heavy == ""
    assert len(ours.split()) <= 6
