"""The public surface: its names, what importing it costs, and what installing it brings."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib

import pytest
from helpers.paths import ROOT

import safemargin as sm
from safemargin import errors


def test_names() -> None:
    assert sorted(sm.__all__) == [
        "AuditLog",
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


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(result.stdout.split())


HEAVY = {"torch", "jax", "ray", "stable_baselines3", "sb3_contrib", "ale_py", "mujoco", "cv2"}


def test_importing_is_light() -> None:
    assert not loaded_after("import safemargin") & (
        HEAVY | {"numpy", "gymnasium", "scipy", "matplotlib", "onnxruntime"}
    )
    # Looking margins up, as in deployment, takes numpy and nothing else.
    assert not loaded_after("import safemargin; safemargin.Margins") & (
        HEAVY | {"gymnasium", "scipy", "matplotlib", "onnxruntime"}
    )
    assert not loaded_after("import safemargin; safemargin.Study; import safemargin.cli") & (
        HEAVY | {"scipy", "matplotlib", "onnxruntime"}
    )
    assert not loaded_after("from safemargin.cli import main; main(['--help'])") & (
        HEAVY | {"numpy", "gymnasium", "scipy", "matplotlib", "onnxruntime"}
    )


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
        "rich",
        "scipy",
    }


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.SafemarginError):
            assert name in drawn, name
