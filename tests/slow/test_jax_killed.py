"""A study on engine jax that is killed with -9 goes on as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jobs import wait_until
from helpers.paths import TESTS
from helpers.studies import contents, estimates_in

pytest.importorskip("jax", reason="needs safemargin[jax]")

from safemargin.study import Study

WORLDS = TESTS / "helpers" / "jax_worlds.py"
MOMENTS = 300
HOW = {
    "gamma": 0.8,
    "n_values": (1, 2, 4),
    "horizon_error": 0.05,
    "trial_plan": "paper",
    "sampling_error": 0.1,
}

COLLECT = """
import sys
from pathlib import Path
from safemargin.study import Study
Study.open(Path(sys.argv[1]), trust=True).collect(int(sys.argv[2]), 0)
"""


@pytest.mark.slow
def test_a_killed_study_goes_on_to_the_same_numbers(tmp_path: Path, whole: bool) -> None:
    if not whole:
        pytest.skip("three processes compile: make test-slow runs it")
    world = f"jax:{WORLDS}:Ledge"
    for name in ("killed", "finished"):
        path = tmp_path / name
        Study.create(path, world, f"{WORLDS}:careful", HOW, env_arguments={"wind": 0.05}).close()
    command = [sys.executable, "-c", COLLECT]
    driver = subprocess.Popen([*command, str(tmp_path / "killed"), str(MOMENTS)])
    wait_until(
        lambda: estimates_in(tmp_path / "killed") > 0 or driver.poll() is not None,
        "the study wrote no estimate",
    )
    driver.kill()
    driver.wait()
    assert 0 < estimates_in(tmp_path / "killed") < 3 * MOMENTS
    for name in ("killed", "finished"):
        subprocess.run([*command, str(tmp_path / name), str(MOMENTS)], check=True)
    assert estimates_in(tmp_path / "killed") == 3 * MOMENTS
    assert contents(tmp_path / "killed") == contents(tmp_path / "finished")
