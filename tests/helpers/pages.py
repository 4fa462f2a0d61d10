"""Runs the commands of the documentation's pages: smaller, with the files that there are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import tomllib
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from helpers.documents import module_of_the_site
from helpers.paths import ROOT
from helpers.props import QUICK
from safemargin.cli import main
from safemargin.cli.app import app  # with all commands
from safemargin.web.server import address_of

blocks = module_of_the_site("blocks")

OTHERS = "another program, on machines of your own"
TRAINING = "trains or measures for minutes to hours; tests/reproduction has its parts"
ADAPTERS = (
    "needs a library that cannot live beside the others; `make test-adapters` trains such agents"
)
NOT_RUN: dict[str, str] = {
    r"pip ": "installs something; every extra that is named must exist",
    r"make (demo|test-slow)": "many minutes of what `make test` and `make docs` do in parts",
    r"(pkill|ray) ": OTHERS,
    r"PYTHONPATH=": TRAINING,
    r"python (reproduction|benchmarks)/": TRAINING,
    r"safemargin reproduce \w": TRAINING,
    r"safemargin collect atari:pong agent\.onnx .*--engine ray": "starts or needs a Ray cluster; "
    "tests/engines/test_ray_engine.py has one",
    r"safemargin doctor \"bridge:/opt/py38": "needs another Python; test_bridge.py has ours",
    r"safemargin collect \S+ +(rllib|sbx|tianshou):": ADAPTERS,
    r"safemargin collect atari:breakout cleanrl:": ADAPTERS,
    r"safemargin margin .*minari:": "needs a dataset of yours; tests/study/test_minari.py has one",
    r"safemargin (collect|doctor) +jax:pgx:|safemargin fit +runs/breakout": "compiles for a "
    "minute; docs/gallery/jax.md measures the same agent in the same world",
}
"""Beginning of a command → why it is only read, not run."""
CI: dict[str, str] = {
    r"make (lint|test|docs)$": ".ci/run",
    r"safemargin demo$": "Makefile",  # make try-dist, which .github/workflows/ci.yml runs
}
"""Beginning of a command → the file that runs the very same one for every change."""
WITH_THE_SITE = (
    r"safemargin doctor \"bridge:",
    r"safemargin collect .* (runs/several|agent\.py:make)",
    r"safemargin simulate-oversight STUDY --(by|budget)",
    r"safemargin collect .*--perturb",
    r"safemargin (collect|doctor) +(atari|minigrid|rl-zoo):",
    r"safemargin trace",
    r"safemargin watch --agents",
    r"safemargin collect CartPole-v1 +(cleanrl:|model|sb3:|old|new)",
    r"safemargin (learn|validate .*learned|log|compare|highlights|report|plot)",
    r"safemargin collect .* --plan",
)
"""Beginnings of commands that take longer than a second: `make docs` runs them, `make test` not."""
TINY = "--natural 3 --spread 0 --n 1 --gamma 0.5 --max-episode-steps 60 --workers 1"
"""How a study is collected in a world that takes its time."""
SMALLER = {
    "natural=200)": "natural=200, seconds=5)",
    "natural=500, spread=500": "natural=60, spread=8, workers=1",
    "sm.Settings(gamma=0.99)": "sm.Settings(gamma=0.9, n_values=(1, 2), opening=10)",
    "--natural 200 --spread 100": "--natural 24 --spread 8 --n 1,2 --gamma 0.9 --opening 10",
    "--natural 100 --spread 100": "--natural 24 --spread 8 --n 1,2 --gamma 0.9 --opening 10",
    '"runs/cartpole"': '"runs/anew"',
    'device="cpu")': 'device="cpu", n_steps=128, n_epochs=1)',
    "total_timesteps=30_000": "total_timesteps=128",
    "model.zip -o runs/cartpole --natural 60 --spread 20 --n 1,2,4,8": "model.zip -o "
    "runs/cartpole --natural 12 --spread 2 --n 1",
    "--natural 40 --spread 10": "--natural 12 --spread 4",
    "--natural 60 --spread 60 --n 1,2,4,8": "--natural 20 --spread 2 --n 1",
    "--n 8 --episodes 100": "--n 2 --episodes 4",
    "--top 10": "--top 1",
    "--top 3": "--top 1",
    "--plan-seconds 20": "--plan-seconds 2 --plan-moments 2 --workers 1",
    "--natural 100 --spread 50": "--natural 12 --spread 4",
    "--gamma 0.97": "--gamma 0.9",
    "--n 1,2,4,8": "--n 1,2",
    "--games 30": "--games 2",
    "natural=250, spread=250": "natural=24, spread=4, workers=1",
    '"runs/pong", "atari:pong"': '"runs/atari", "atari:pong"',
    "0.01,0.05,0.1": "0.05",
    " --seconds 600": "",
    '"baseline.json").check()': '"baseline.json").check(undecided=True)',
    "--agents 12": "--agents 1",
    "8x8": "5x5",
    "runs/several": "runs/anew",
    "examples/": f"{ROOT}/examples/",
    "bridge:python": f"bridge:{sys.executable}",
}
"""What the pages say → what is run here, so that it takes seconds."""
WITH_WHAT_WE_HAVE = {
    r"(zoo:(?:beamrider|pong)-a3c) margins\.json": r"\1 \1",
    r"\b(atari:pong .*)agent\.onnx": r"\1zoo:pong-a3c",
    r"^(.*(?: learn |--by regret|--proxy learned).*|.* learn +)(STUDY|runs/\w+)": r"\1runs/road",
    r"^(.* )(STUDY|runs/\w+)( .*(?:--by regret|--proxy learned).*)": r"\1runs/road\3",
    r"( learn .*) --promise margin --tolerance 0\.5": r"\1",  # so little data has no better proxy
    r"STUDY": "runs/study",
    r"HalfCheetah-v5_1": "CartPole-v1_1",
    r"acrobot-\*\.onnx": "*.zip",
    r"Acrobot-v1": "CartPole-v1",
    r"Pendulum-v1|my\.py:make": "costly.py:make",
    r" --port \d+": "",
}
"""A pattern in a command → what stands for it here."""


def excuse_for(command: str) -> str | None:
    """Why a command is not run; None if it is."""
    return next((why for how, why in NOT_RUN.items() if re.match(how, command)), None)


def read_command(command: str) -> None:
    """Check that safemargin would accept a command, with the optional parts in brackets."""
    command = command.partition(" > ")[0]
    plain = re.sub(r"\[[^\]|]*\|[^\]]*\]", "", command)
    words = shlex.split(re.sub(r"[\[\]]", "", plain).replace("…", "x"))[1:]
    app.parse_args(words, print_error=False, exit_on_error=False)


def check_extras(command: str) -> None:
    """Check that a pip command names extras that there are."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:safemargin|\.)\[(.*?)\]", command):
        assert set(extras.split(",")) <= set(known), command


def smaller(text: str) -> str:
    """A block or command of a page, cut down to seconds."""
    for said, done in SMALLER.items():
        text = text.replace(said, done)
    return text


def run_command(command: str) -> None:
    """Run one command of a page in a smaller form, with what we have."""
    command = re.sub(r" \[.*?\]", "", smaller(command.partition(" > ")[0]))
    for pattern, here in WITH_WHAT_WE_HAVE.items():
        command = re.sub(pattern, here, command)
    if command.startswith("sqlite3 "):
        file, query = shlex.split(command)[1:]
        with sqlite3.connect(file) as database:
            assert database.execute(query).fetchall()
        return
    words = [each for word in shlex.split(command)[1:] for each in glob(word) or [word]]
    if words[0] == "collect" and words[2] != "agent.onnx":  # another agent, another study
        shutil.rmtree(words[words.index("-o") + 1], ignore_errors=True)
    if words[0] == "collect" and "--natural" not in words:
        words += (QUICK if "CartPole" in command or "costly" in command else TINY).split()
    elif words[0] == "trace":
        words += [] if "--seconds" in words else ["--moments", "20"]
        words += ["--gamma", "0.9", "--workers", "1", *([] if "--n" in words else ["--n", "1"])]
    elif words[0] == "watch" and "-o" not in words:
        words += ["--port", "0"]
    status = main(words)
    # 1: a finding, e.g. that no threshold keeps to the budget; 3: a gate that cannot tell yet
    assert status in ((0, 1, 3) if words[0] == "gate" else (0, 1)), command


def visit(
    page: Any, bound: socket.socket, *, query: str = "", ending: Any = lambda: None, **_: Any
) -> None:
    """Serve a page until somebody has seen it."""
    with bound, TestClient(page, base_url=address_of(bound)) as person:
        assert person.get("/" + query).status_code == 200
        ending()
    raise KeyboardInterrupt


def run_by_ci(command: str) -> bool:
    """Whether every change runs this very command."""
    return any(
        re.match(how, command) and command in (ROOT / file).read_text("utf-8")
        for how, file in CI.items()
    )


def with_the_site() -> None:
    """Leave the rest of a test to `make docs`."""
    if os.environ.get("SAFEMARGIN_SLOW") != "1":
        pytest.skip("make docs runs it")


def named(block: Any) -> str:
    """The name of a block's test."""
    return f"{block.page}:{block.line}"


def follow(page: str, *, until: str = "") -> None:
    """Do what a tutorial says, in the working folder: save files, run commands and Python."""
    for block in blocks.blocks_of(ROOT, page):
        if block.kind == "python" and block.name:
            Path(block.name).write_text(smaller(block.text) + "\n", "utf-8")
        elif block.kind == "python":
            exec(compile(smaller(block.text), named(block), "exec"), {})
        for command in block.commands() if block.kind == "shell" else ():
            if until and command.startswith(until):
                return
            if command.startswith("python "):
                subprocess.run([sys.executable, *command.split()[1:]], check=True)
            elif not excuse_for(command.replace("model.zip", "")):
                run_command(command)
