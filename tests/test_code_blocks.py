"""Every command and every Python block of the documentation is run, or has a reason why not.

What is not run is still read: a command must be one that the program accepts, and a Python block
must compile and name only what safemargin has.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.documents import PAGES
from helpers.pages import (
    CI,
    NOT_RUN,
    WITH_THE_SITE,
    blocks,
    check_extras,
    excuse_for,
    named,
    read_command,
    run_by_ci,
    run_command,
    smaller,
    visit,
    with_the_site,
)
from helpers.paths import ROOT
from helpers.props import Props, names

import safemargin as sm
from safemargin.margins import OutsideRange

BLOCKS = [block for page in PAGES for block in blocks.blocks_of(ROOT, page)]

PYTHON_NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/monitor.md", "from safemargin.monitor import EvaluationWatch"): "needs margins of a "
    "Stable-Baselines3 model; tests/monitor/test_evaluation_watch.py has them",
    ("docs/proxies.md", "advantage ="): "needs a policy with critics; "
    "tests/study/test_critic_proxies.py has them",
    ("docs/regret.md", "from safemargin.margins import Ranking"): "needs the inputs of a learned "
    "ranking; tests/margins/test_learned.py has them",
    ("docs/policies.md", "# agent.py"): "loads your weights; tests/policies loads such files",
}
"""(Page, beginning of a block) → why it is only read, not run."""
PYTHON_WITH_THE_SITE = (
    ("README.md", "import safemargin as sm"),
    ("docs/criticality.md", ""),
    ("docs/environments.md", "diagnosis ="),
    ("docs/fleet.md", ""),
    ("docs/learned.md", ""),
    ("docs/perturbations.md", "study.collect"),
    ("docs/policies.md", ""),
    ("docs/study.md", ""),
)
"""(Page, beginning of a block) of Python that takes longer than a second."""
READ_ONLY_AT_MOST = 45
"""How many commands and Python blocks of all pages together may be left unrun, with a reason."""


@pytest.fixture(scope="module")
def props(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Props]:
    """What the pages take for granted, made once; small models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("safemargin.margins.learned.models.MEMBERS", 1)
        yield Props(tmp_path_factory.mktemp("documents"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, where a page that is served is visited once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("safemargin.web.server.serve", visit)
    with sm.AuditLog("watch.db", write=True) as log:
        log.add("server-started")
        for step in range(17):
            log.add("call", agent="agent 03", step=step, picture=b"\xff\xd8\xff")
    return tmp_path


SHELL = [block for block in BLOCKS if block.kind == "shell"]
PYTHON = [block for block in BLOCKS if block.kind == "python"]
IN_ORDER = ("docs/tutorials/", "docs/gallery/")


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_commands(block: Any, request: pytest.FixtureRequest) -> None:
    to_run = []
    for command in block.commands():
        if command.startswith("safemargin "):
            read_command(command)
        elif command.startswith("pip "):
            check_extras(command)
        if not (block.page.startswith(IN_ORDER) or excuse_for(command) or run_by_ci(command)):
            assert command.startswith(("safemargin ", "sqlite3 ")), "neither run nor excused"
            to_run.append(command)
    if to_run:
        if any(re.match(how, command) for how in WITH_THE_SITE for command in to_run):
            with_the_site()
        request.getfixturevalue("props").put("\n".join(to_run), request.getfixturevalue("here"))
    for command in to_run:
        run_command(command)


@pytest.mark.parametrize("block", PYTHON, ids=named)
def test_python(block: Any, request: pytest.FixtureRequest) -> None:
    tree = ast.parse(block.text)
    check_names(tree)
    if block.page.startswith(IN_ORDER) or begins(block, PYTHON_NOT_RUN):
        return
    if begins(block, PYTHON_WITH_THE_SITE):
        with_the_site()
    request.getfixturevalue("props").put(block.text, request.getfixturevalue("here"))
    values = names(block.text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideRange)  # of values that the pages make up
        for kind in (DeprecationWarning, FutureWarning):  # of Box2D and PyTorch's export
            warnings.simplefilter("ignore", kind)
        try:
            exec(compile(smaller(block.text), named(block), "exec"), values)
        finally:
            for value in values.values():
                if isinstance(value, sm.RemoteOverseer):
                    value.close()  # its thread would go on asking for the server


def begins(block: Any, listed: Iterable[tuple[str, str]]) -> bool:
    """Whether a block is listed by its page and its beginning."""
    return any(block.page == page and block.text.startswith(text) for page, text in listed)


def check_names(tree: ast.AST) -> None:
    """Check that what a block takes from safemargin exists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safemargin"):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sm":
            assert hasattr(sm, node.attr), f"safemargin has no {node.attr}"


def test_what_is_not_run_is_counted() -> None:
    shell = [block for block in SHELL if not block.page.startswith("docs/gallery/")]
    commands = [command for block in shell for command in block.commands()]
    reasons = Counter(map(excuse_for, commands)) - Counter({None: len(commands)})
    reasons += Counter(
        PYTHON_NOT_RUN[key] for block in PYTHON for key in PYTHON_NOT_RUN if begins(block, [key])
    )
    print(*(f"{count:3} {why}" for why, count in reasons.most_common()), sep="\n")
    assert [how for how in NOT_RUN if not any(re.match(how, each) for each in commands)] == []
    assert [how for how in CI if not any(re.match(how, each) for each in commands)] == []
    assert [how for how in WITH_THE_SITE if not any(re.match(how, c) for c in commands)] == []
    for key in (*PYTHON_NOT_RUN, *PYTHON_WITH_THE_SITE):
        assert any(begins(block, [key]) for block in PYTHON), key
    print(f"{reasons.total()} of {len(commands)} commands and {len(PYTHON)} Python blocks not run")
    assert 0 < reasons.total() <= READ_ONLY_AT_MOST
