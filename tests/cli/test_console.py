"""What the commands say while they work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from safemargin.cli import console
from safemargin.cli.console import ProgressBar, note_choice
from safemargin.core.progress import Expecting
from safemargin.core.settings import Settings


class Clock:
    """A clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_the_time_left_is_said_once_enough_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with ProgressBar() as bar:
        bar.stage("criticality", total=600, done=0)
        clock.now += 40.0  # workers start
        for _ in range(6):  # the first moment, measured for six n
            bar.advance(0)
        for _ in range(49):
            clock.now += 1.0
            bar.advance(0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "measuring criticality: 1 of 600",
        "measuring criticality: 22 of 600",
        "measuring criticality: 38 of 600",
        # 53 pieces in 48 s since the first one, and 546 are left: 495 s
        "measuring criticality: 54 of 600, about 8 min left",
    ]


def test_before_that_the_forecast_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with ProgressBar() as bar:
        assert isinstance(bar, Expecting)
        bar.stage("criticality", total=600, done=0)
        for _ in range(6):
            clock.now += 10.0
            bar.advance(0)
        bar.expect(900.0, 300.0, 2700.0)
        clock.now += 60.0
        bar.advance(0)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "measuring criticality: 7 of 600, about 14 min (4 min to 44 min) left"
    )


def test_a_quarter_of_a_short_stage_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with ProgressBar() as bar:
        bar.stage("highlights", total=8, done=0)
        for _ in range(4):
            clock.now += 20.0
            bar.advance(0)
    assert capsys.readouterr().err.splitlines() == [
        "filming: 1 of 8",
        "filming: 2 of 8",
        "filming: 3 of 8, about 2 min left",
        "filming: 4 of 8, about 80 s left",
    ]


def test_a_bar_hides_the_time_left_until_then() -> None:
    now = [0.0]
    column = console._TimeLeft()
    bars = Progress(column, get_time=lambda: now[0])
    bars.add_task("measuring", total=100, enough=False, forecast=None)
    task = bars.tasks[0]
    for _ in range(10):
        now[0] += 1.0
        bars.update(task.id, advance=1)
    assert str(column.render(task)) == "-:--:--"
    now[0] += 1.0
    forecast = console._Forecast(time.monotonic(), 3600.0, 3600.0, 3600.0)
    bars.update(task.id, forecast=forecast)
    assert str(column.render(task)) == "about 60 min"
    now[0] += 1.0  # a column draws again only after a while
    bars.update(task.id, enough=True)
    assert str(column.render(task)) == "0:01:30"


@pytest.mark.parametrize("words", [["zoo"], ["fit", "--help"]])
def test_no_color_prints_no_escape_codes(words: list[str]) -> None:
    def on_a_terminal(**more: str) -> str:
        near, far = os.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **more}
        command = [sys.executable, "-m", "safemargin", *words]
        with subprocess.Popen(command, stdout=far, stderr=far, env=environment) as process:
            os.close(far)
            said = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while more_said := os.read(near, 65536):
                    said += more_said
            assert process.wait(timeout=60) == 0
        os.close(near)
        return said.decode()

    assert "\x1b[" in on_a_terminal(NO_COLOR="")
    assert "\x1b" not in on_a_terminal(NO_COLOR="1")


def test_a_choice_that_a_library_makes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    exploring = Settings(action_choice="epsilon-greedy", epsilon=0.1)
    note_choice(exploring, "CartPole-v1", None)
    said = capsys.readouterr().err
    assert "the policy acts epsilon-greedy (epsilon 0.1), as its own library evaluates it" in said
    note_choice(exploring, "CartPole-v1", "epsilon-greedy")  # asked for
    note_choice(exploring, "rl-zoo:folder", None)  # said with the folder
    note_choice(Settings(), "CartPole-v1", None)
    assert capsys.readouterr().err == ""
