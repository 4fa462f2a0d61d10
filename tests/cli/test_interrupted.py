"""Ctrl-C: what a command that is interrupted says, from its first import on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import safemargin as sm
from safemargin.cli import main
from safemargin.cli.options import KEPT, on_ctrl_c

WHILE_IT_LOADS = """
import sys
class Interrupt:
    def find_spec(self, name, *where):
        if name == "cyclopts":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from safemargin.cli import main
sys.exit(main(["status", "study"]))
"""


def test_while_the_command_line_loads() -> None:
    found = subprocess.run(
        [sys.executable, "-c", WHILE_IT_LOADS], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "\nstopped\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "study", "-o", "margins.json"], "stopped"),
        (["status", "study"], "stopped"),
        (["collect", "CartPole-v1", "zoo:cartpole", "-o", "study"], KEPT),
        (["demo"], KEPT),
        (["reproduce", "pong-a3c"], KEPT),
        (["learn", "study"], KEPT),
        (["report", "study", "-o", "report.html"], "stopped; no report was written"),
    ],
)
def test_only_commands_that_collect_speak_of_going_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    for name in ("open", "create"):
        monkeypatch.setattr(sm.Study, name, interrupted)
    assert main(words) == 130
    assert capsys.readouterr().err.splitlines()[-2:] == ["", said]


def test_what_lies_within_says_more() -> None:
    with pytest.raises(KeyboardInterrupt, match="no plan"), on_ctrl_c(KEPT), on_ctrl_c("no plan"):
        raise KeyboardInterrupt
