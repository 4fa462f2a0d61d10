"""Every command and every Python block of the documentation is run, or has a reason why not.

What is not run is still read: a command must be one that the program accepts, and a Python block
must compile and name only what safemargin has.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.documents import PAGES, module_of_the_site
from helpers.fleet_server import TOKEN, running
from helpers.paths import ROOT

import safemargin as sm
from safemargin.cli import main
from safemargin.cli.app import app  # with all commands
from safemargin.margins import OutsideRange

blocks = module_of_the_site("blocks")
BLOCKS = [block for page in PAGES for block in blocks.blocks_of(ROOT, page)]

SLOW = "minutes of Atari; tests/study and tests/cli collect smaller studies"
SERVER = "serves a page until Ctrl-C; tests/web and tests/cli/test_watch.py do that"
OTHERS = "another program, or a machine of your own"
TRAINING = "trains or measures for minutes to hours; tests/reproduction has its parts"
TUTORIAL = "run in order by the tests of the tutorials below"
GALLERY = "run in order whenever the site is built, by `make docs`"
NOT_RUN: dict[str, str] = {
    r"(pip|pkill|ray|sqlite3|make) ": OTHERS,
    r"PYTHONPATH=": TRAINING,
    r"python (reproduction|benchmarks)/": TRAINING,
    r"safemargin (explore|watch(?!.* -o ))\b": SERVER,
    r"safemargin reproduce \w": TRAINING,
    r"safemargin (collect|doctor) atari:": SLOW,
    r"safemargin (collect|doctor) \"?(minigrid|pettingzoo|bridge):": "needs your "
    "agents; tests/environments has a test of each scheme",
    r"safemargin (collect|doctor) +jax:pgx:|safemargin fit +runs/breakout": "compiles for long; "
    "tests/engines/test_jax_engine.py collects small worlds",
    r"safemargin demo": SLOW,
    r"safemargin log": "needs a library that is optional; tests/study/test_tracking.py logs",
    r"safemargin (collect|doctor) +rl-zoo:": "needs a training folder; tests/policies has them",
    r"safemargin collect \S+ +(rllib|sbx|cleanrl|tianshou):": "tests/adapters train such agents",
    r"safemargin collect my\.py": "needs your files; tests/criticality/test_signals.py has signals",
    r"safemargin (collect .*|fit )runs/several": "tests/study/test_several.py collects several",
    r"safemargin trace": "needs checkpoints of a training; tests/study/test_tracing.py has them",
    r"safemargin attack": "plays many games; tests/monitor/test_attack.py attacks small ones",
    r"safemargin learn|.*--proxy learned|.*--by regret": "needs a lesson worth learning; "
    "tests/study/test_learning.py and tests/cli/test_learn.py learn",
    r"safemargin collect CartPole-v1 (\w+\.zip|sb3:|my\.|agent\.py:make )": "needs your "
    "files; tests/policies/test_policy_loading.py loads each kind",
}
"""Beginning of a command → why it is only read, not run."""
PYTHON_NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/environments.md", "import safemargin as sm\n\nsm.register_state"): "RobotEnv is yours",
    ("docs/environments.md", "diagnosis ="): "Box2D cannot be imported where warnings are errors; "
    "docs/gallery/lunar-lander.md runs it",
    ("docs/fleet.md", "overseer ="): SERVER,
    ("docs/fleet.md", "decision ="): SERVER,
    ("docs/monitor.md", "caller ="): "needs a fleet; tests/monitor has a caller of many",
    ("docs/perturbations.md", "sm.true"): "needs a function of yours; tests/criticality has some",
    ("docs/perturbations.md", "study.collect"): "tests/study/test_several.py collects several",
    ("docs/learned.md", "seen ="): "needs a learned proxy; tests/monitor has one",
    ("docs/monitor.md", "from safemargin.monitor import EvaluationWatch"): "needs a "
    "Stable-Baselines3 model; tests/monitor evaluates one",
    ("docs/policies.md", "import safemargin as sm\n\npolicy"): "needs your model; "
    "tests/policies/test_policy_loading.py loads each kind",
    ("docs/policies.md", "agent.eval()"): "exports your network",
    ("docs/policies.md", "# agent.py"): "loads your weights",
    ("docs/proxies.md", "advantage ="): "needs a policy with critics; tests/policies has them",
    ("docs/regret.md", "from safemargin.margins import Ranking"): "needs a learned ranking; "
    "tests/margins/test_learned.py has one",
    ("docs/study.md", "plan ="): SLOW,
    ("README.md", "import safemargin as sm"): "one line of each thing; the pages it names run them",
}
"""(Page, beginning of a block) → why it is only read, not run."""
SMALLER = {
    "natural=500, spread=500": "natural=24, spread=8, workers=1",
    "sm.Settings(gamma=0.99)": "sm.Settings(gamma=0.9, n_values=(1, 2), opening=10, "
    "max_episode_steps=150)",
    "--natural 100 --spread 100": "--natural 24 --spread 8 --n 1,2 --gamma 0.9 --opening 10 "
    "--max-episode-steps 150",
    '"runs/cartpole"': '"runs/anew"',
    'device="cpu")': 'device="cpu", n_steps=128, n_epochs=1)',
    "total_timesteps=30_000": "total_timesteps=128",
    "model.zip -o runs/cartpole --natural 60 --spread 20 --n 1,2,4,8": "model.zip -o "
    "runs/cartpole --natural 12 --spread 2 --n 1 --workers 1",
    "--natural 60 --spread 20 --n 1,2,4 ": "--natural 20 --spread 4 --n 1,2 --workers 1 ",
    "--natural 40 --spread 10": "--natural 12 --spread 4",
    "--natural 60 --spread 60 --n 1,2,4,8": "--natural 20 --spread 2 --n 1",
    "--n 8 --episodes 100": "--n 2 --episodes 4",
    "--top 10": "--top 1",
    "--top 3": "--top 1",
    "--plan-seconds 20": "--plan-seconds 2 --plan-moments 2 --workers 1",
    "--natural 100 --spread 50": "--natural 12 --spread 4",
    "--gamma 0.97": "--gamma 0.9",
    "--n 1,2,4,8": "--n 1,2",
}
"""What the pages say → what is run here, so that it takes seconds."""
READ_ONLY_AT_MOST = 105
"""How many commands and Python blocks of all pages together may be left unrun, with a reason."""
QUICK = (
    "--natural 24 --spread 8 --n 1,2 --gamma 0.9 --opening 10 --workers 1 --max-episode-steps 150"
)
"""How a study is collected here where a page would take the defaults."""


SECOND_CHECKPOINT = """
import numpy as np

def values(observations):
    lean = observations @ np.array([0.1, 0.3, 1.0, 0.5])
    return np.stack([-lean, lean], axis=1)
"""
"""What `gate` compares with the agent of the pages."""


def excuse_for(command: str) -> str | None:
    """Why a command is not run; None if it is."""
    return next((why for how, why in NOT_RUN.items() if re.match(how, command)), None)


def python_excuse(block: Any) -> str | None:
    """Why a Python block is not run; None if it is."""
    if block.page.startswith("docs/tutorials/"):
        return TUTORIAL
    if block.page.startswith("docs/gallery/"):
        return GALLERY
    for (page, begins), why in PYTHON_NOT_RUN.items():
        if block.page == page and block.text.startswith(begins):
            return why
    return None


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages speak of: an agent, studies, margins, a log."""
    folder = tmp_path_factory.mktemp("documents")
    shutil.copy(ROOT / "src/safemargin/policies/zoo/cartpole.onnx", folder / "agent.onnx")
    collect = f"collect CartPole-v1 {folder}/agent.onnx -o {folder}/runs/study {QUICK}"
    assert main(collect.split()) == 0
    second = folder / "second.py"
    second.write_text(SECOND_CHECKPOINT)
    (folder / "agent.py").write_text(f"{SECOND_CHECKPOINT}\n\nvalues.kind = 'q'\n")
    collect = f"collect CartPole-v1 {second}:values --scores q -o {folder}/runs/new {QUICK}"
    assert main(collect.split()) == 0
    for name in ("pong", "cartpole", "old"):
        shutil.copytree(folder / "runs/study", folder / "runs" / name)
    with sm.Study.open(folder / "runs/study") as study:
        study.fit(0.9).save(folder / "margins.json")
    assert main(f"gate {folder}/runs/old --save-baseline {folder}/baseline.json".split()) == 0
    return folder


@pytest.fixture
def here(studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working folder."""
    shutil.copytree(studies, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with sm.AuditLog("watch.db", write=True) as log:
        log.add("server-started")
        for step in range(17):
            log.add("call", agent="agent 03", step=step, picture=b"\xff\xd8\xff")
    return tmp_path


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
    """Run one command of a page in a smaller form."""
    words = shlex.split(smaller(command.partition(" > ")[0]).replace("STUDY", "runs/study"))[1:]
    if words[0] == "collect" and "--natural" not in words:
        shutil.rmtree(words[words.index("-o") + 1], ignore_errors=True)
        words += QUICK.split()
    status = main(words)
    # 1: a finding, e.g. that no threshold keeps to the budget; 3: a gate that cannot tell yet
    assert status in ((0, 1, 3) if words[0] == "gate" else (0, 1)), command


SHELL = [block for block in BLOCKS if block.kind == "shell"]
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def named(block: Any) -> str:
    """The name of a block's test."""
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_commands(block: Any, request: pytest.FixtureRequest) -> None:
    elsewhere = block.page.startswith(("docs/tutorials/", "docs/gallery/"))
    for command in block.commands():
        if elsewhere or excuse_for(command) is not None:
            if command.startswith("safemargin "):
                read_command(command)
            elif command.startswith("pip "):
                check_extras(command)
            continue
        assert command.startswith("safemargin "), f"{command!r} is neither run nor excused"
        request.getfixturevalue("here")
        run_command(command)


def namespace() -> dict[str, Any]:
    """What the pages take for granted: an agent, its environment, margins, some scores."""
    policy = sm.load_policy("agent.onnx")
    env = gym.make("CartPole-v1")
    drawn = np.random.default_rng(0)
    proxies = drawn.uniform(1, 8, 200)
    return {
        "sm": sm,
        "gym": gym,
        "np": np,
        "env": env,
        "policy": policy,
        "monitor": sm.Monitor("margins.json", tolerance=1e-9, call_at=2),  # calls always
        "margins": sm.Margins.load("margins.json"),
        "scores": np.array([0.1, 2.3]),
        "scores_of_all": drawn.normal(size=(20, 2)),
        "proxies": proxies,
        "criticalities": proxies[:, None] * drawn.uniform(0, 1, (200, 4)),
        "ask": lambda *question: 0,
        "action": 0,
    }


@pytest.mark.parametrize("block", PYTHON, ids=named)
def test_python(block: Any, request: pytest.FixtureRequest) -> None:
    tree = ast.parse(block.text)
    check_names(tree)
    if python_excuse(block) is not None:
        return
    request.getfixturevalue("here")
    values = namespace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideRange)  # of values that the pages make up
        exec(compile(smaller(block.text), named(block), "exec"), values)


def check_names(tree: ast.AST) -> None:
    """Check that what a block takes from safemargin exists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safemargin"):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sm":
            assert hasattr(sm, node.attr), f"safemargin has no {node.attr}"


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


def test_the_tutorial_on_a_cluster(
    empty: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a cluster with SAFEMARGIN_SLOW=1; tests/engines has what Ray does with any study."""
    joins = "--workers 1"
    if os.environ.get("SAFEMARGIN_SLOW"):
        joins += f" --engine ray --address {request.getfixturevalue('ray_cluster')}"
    monkeypatch.setitem(SMALLER, "--engine ray --address 127.0.0.1:6390", joins)
    follow("docs/tutorials/cluster.md")
    assert "20 of 20 moments measured for every n" in capsys.readouterr().out
    assert (empty / "report.html").exists()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return tmp_path


def test_the_tutorial_on_an_environment_of_your_own(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow("docs/tutorials/environment.md")
    said = capsys.readouterr().out
    assert "Ferry can be measured by snapshot" in said
    assert "the layer that leaks is Tidal, which keeps state outside its attributes" in said
    assert "Tidal can be measured by replay" in said
    assert (empty / "moments.csv").exists()
    assert "data:image/jpeg;base64," in (empty / "report.html").read_text()


def test_the_tutorial_on_a_world_in_jax(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax", reason="needs safemargin[jax]")
    follow("docs/tutorials/jax.md")
    said = capsys.readouterr().out
    assert "Ridge can be measured by snapshot" in said
    assert "Forgetful cannot be measured: step is not a pure function" in said
    assert "data:image/jpeg;base64," in (empty / "report.html").read_text()


def test_the_tutorial_on_stable_baselines3(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stable_baselines3")
    follow("docs/tutorials/sb3.md")
    said = capsys.readouterr().out
    assert "CartPole-v1 can be measured by snapshot" in said
    assert re.search(r"\d+ of \d+ decisions can afford no random action", said)
    assert (empty / "report.html").exists()


def test_the_tutorial_on_a_fleet(empty: Path) -> None:
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
    with running(empty, *words) as server:
        here = {"WATCH": f"http://127.0.0.1:{server.port}", "EPISODES": "1"}
        agent = [sys.executable, "agent.py", "cart 1"]
        environment = {**os.environ, **here, "SAFEMARGIN_TOKEN": TOKEN}
        subprocess.run(agent, env=environment, check=True, timeout=300)
    assert main(["audit", "watch.db"]) == 0
    assert main(["watch", "--replay", "watch.db", "-o", "replay.html"]) == 0
    with sm.AuditLog("watch.db") as log:
        assert "cart 1" in {entry.agent for entry in log}


def test_what_is_not_run_is_counted() -> None:
    shell = [block for block in SHELL if not block.page.startswith("docs/gallery/")]
    commands = [command for block in shell for command in block.commands()]
    commands = [command for command in commands if not command.startswith("pip ")]  # checked above
    reasons = Counter(map(excuse_for, commands)) - Counter({None: len(commands)})
    reasons += Counter(
        each for each in map(python_excuse, PYTHON) if each not in (None, TUTORIAL, GALLERY)
    )
    print(*(f"{count:3} {why}" for why, count in reasons.most_common()), sep="\n")
    unused = [how for how in NOT_RUN if not any(re.match(how, each) for each in commands)]
    assert unused == []
    begins = {
        key: [b for b in PYTHON if (b.page, b.text[: len(key[1])]) == key] for key in PYTHON_NOT_RUN
    }
    assert [key for key, found in begins.items() if not found] == []
    print(f"{reasons.total()} of {len(commands)} commands and {len(PYTHON)} Python blocks not run")
    assert 0 < reasons.total() <= READ_ONLY_AT_MOST
