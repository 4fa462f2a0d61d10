"""The public surface: its names, what importing it costs, and what installing it brings."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from helpers.paths import ROOT

import safemargin as sm
from safemargin import errors


def test_names() -> None:
    assert sorted(sm.__all__) == [
        "AuditLog",
        "Caller",
        "CostPlan",
        "Diagnosis",
        "Episode",
        "Estimate",
        "Margins",
        "Moment",
        "Monitor",
        "Overseen",
        "Policy",
        "RemoteOverseer",
        "SafemarginError",
        "Settings",
        "Study",
        "Tuples",
        "examine",
        "fit_margins",
        "gate",
        "load_policy",
        "oversee",
        "plan_study",
        "register_proxy",
        "register_state",
        "simulate_oversight",
        "true_criticality",
    ]
    for name in sm.__all__:
        assert getattr(sm, name).__doc__, name
        assert name in dir(sm)
    with pytest.raises(AttributeError, match="module 'safemargin' has no attribute 'Studdy'"):
        _ = sm.Studdy


@pytest.mark.parametrize(
    "package",
    [
        *("criticality", "environments", "environments.doctor", "margins", "monitor", "policies"),
        *("study", "validation", "web.fleet"),
    ],
)
def test_every_name_of_a_package_is_found_where_its_source_says(package: str) -> None:
    module = importlib.import_module(f"safemargin.{package}")
    assert module.__all__ == sorted(set(module.__all__)) == dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module 'safemargin.{package}' has no attribute"):
        _ = module.Studdy


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(result.stdout.split())


HEAVY = {
    "ale_py",
    "cv2",
    "jax",
    "matplotlib",
    "mujoco",
    "onnxruntime",
    "plotly",
    "pyarrow",
    "ray",
    "sb3_contrib",
    "scipy",
    "sklearn",
    "stable_baselines3",
    "torch",
}
WEB = {"fastapi", "starlette", "uvicorn", "websockets"}
FITTING = {
    f"safemargin.margins.{name}"
    for name in (
        *("density", "fitting", "methods"),
        *("learned.choosing", "learned.crossfit", "learned.models"),
        *(f"bounds.{name}" for name in ("boosted", "calibrated", "conformal", "granted")),
        *(f"bounds.{name}" for name in ("isotonic", "paper", "ranks", "sample", "tolerance")),
    )
}
STUDY = ROOT / "tests" / "data" / "studies" / "pong-a3c"
MARGINS = ROOT / "tests" / "data" / "cartpole-margins.json"


@pytest.mark.parametrize(
    ("statement", "expected", "unwanted"),
    [
        ("import safemargin", "safemargin", HEAVY | WEB | FITTING | {"numpy", "gymnasium"}),
        # Deployment: looking margins up needs numpy and nothing else, nor does a monitor.
        ("import safemargin as s; s.Margins", "numpy", HEAVY | WEB | FITTING | {"gymnasium"}),
        (
            f"import safemargin as s; s.Monitor({str(MARGINS)!r}, tolerance=1.0).step([0.5, 0.25])",
            "numpy",
            HEAVY | WEB | FITTING | {"gymnasium"},
        ),
        ("import safemargin as s; s.Study; import safemargin.cli", "gymnasium", HEAVY | WEB),
        (
            "import safemargin as s; from safemargin.web.report import report_info; "
            f"report_info(s.Study.open({str(STUDY)!r}), top=0)",
            "gymnasium",
            (HEAVY - {"scipy"}) | WEB,
        ),
        (
            "from safemargin.cli import main; main(['--help'])",
            "cyclopts",
            HEAVY | WEB | FITTING | {"numpy", "gymnasium"},
        ),
        (
            "import safemargin.cli.watch, safemargin.cli.fleet, safemargin.web.explorer",
            "fastapi",
            HEAVY,
        ),
    ],
    ids=["package", "Margins", "Monitor", "Study", "report", "help", "watch"],
)
def test_importing_is_light(statement: str, expected: str, unwanted: set[str]) -> None:
    if expected in WEB:
        pytest.importorskip(expected)
    assert all(find_spec(name) for name in FITTING)
    loaded = loaded_after(statement)
    assert expected in loaded
    assert not loaded & unwanted


def test_a_plain_install_brings_no_deep_learning_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0].split("=")[0] for requirement in project["dependencies"]}
    assert names == {
        "cloudpickle",
        "cyclopts",
        "gymnasium",
        "matplotlib",
        "numpy",
        "onnxruntime",
        "platformdirs",
        "rich",
        "scipy",
    }


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn: dict[str, str] = {}  # name → parent
    branch = ["SafemarginError"]  # from the root to the line before
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            branch[depth:] = [match[2]]
            drawn[match[2]] = branch[depth - 1]
    raised = {
        name: [base.__name__ for base in value.__bases__]
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.SafemarginError)
    }
    assert raised.pop("SafemarginError") == ["Exception"]
    assert set(drawn) == set(raised)
    assert {name: bases[0] for name, bases in raised.items()} == drawn
