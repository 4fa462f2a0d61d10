"""The demonstration, on CartPole instead of Pong so that it takes seconds."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from safemargin.cli import demo, main
from safemargin.core.settings import Settings


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small demonstration, somebody at a screen, and the addresses that a browser gets."""
    pytest.importorskip("plotly")
    settings = Settings(gamma=0.8, n_values=(1, demo.SHOWN_N), trials=4, opening=20)
    small = {"ENVIRONMENT": "CartPole-v1", "POLICY": "zoo:cartpole", "SETTINGS": settings}
    for name, value in {**small, "MOMENTS": 10}.items():
        monkeypatch.setattr(demo, name, value)
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setattr(demo, "can_show_a_page", lambda environment, platform: True)
    return addresses


def test_it_ends_with_the_report_at_the_worst_moment(
    opened: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    command = ["demo", "-o", str(tmp_path / "demo"), "--workers", "1"]
    assert main(command) == 0
    report = tmp_path / "demo" / "report.html"
    assert opened == [report.as_uri() + "#moment-1"]
    said = capsys.readouterr().out
    assert "The most critical of 20 moments: step " in said
    assert f"explore {tmp_path / 'demo' / 'study'}\n" in said
    assert "Open the report in a browser" not in said

    assert main([*command, "--no-browser"]) == 0
    assert len(opened) == 1
    assert "Open the report in a browser" in capsys.readouterr().out

    assert main([*command, "--json"]) == 0
    assert len(opened) == 1
    assert json.loads(capsys.readouterr().out)["report"] == str(report)


@pytest.mark.parametrize(
    ("environment", "platform", "shown"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}, "darwin", False),
        ({"CI": "1"}, "win32", False),
        ({}, "win32", True),
    ],
)
def test_a_page_is_opened_only_where_somebody_sees_it(
    environment: dict[str, str], platform: str, shown: bool
) -> None:
    assert demo.can_show_a_page(environment, platform) is shown


def test_without_its_libraries_it_names_one_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(name: str) -> Any:
        return None if name == "plotly" else object()

    monkeypatch.setattr(demo, "find_spec", find)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 2
    assert "pip install 'safemargin[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
