"""Pages of the site to click through without a server: a report, and the replay of a fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from blocks import blocks_of
from run_gallery import publish

import safemargin as sm
from safemargin.monitor.pictures import as_picture

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from helpers.fleet_server import Person, Server, running  # noqa: E402  (found by the path above)


def write_all(folder: Path) -> None:
    """Write every live page into a folder of the site."""
    write_fleet(folder)
    write_report(folder)
    write_drive(folder / "drive.html")


TUTORIAL = "docs/tutorials/environment.md"
LIVE_COMMANDS = ("collect", "report")


def write_report(site: Path) -> None:
    """Follow the tutorial on an environment of your own, and publish the report it ends with."""
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks_of(ROOT, TUTORIAL):
            if block.name:
                (Path(folder) / block.name).write_text(block.text + "\n", "utf-8")
            for command in block.commands() if block.kind == "shell" else ():
                if command.split()[:2] in (["safemargin", name] for name in LIVE_COMMANDS):
                    safemargin(Path(folder), *command.split()[1:])
        publish(Path(folder) / "report.html", site / "report.html", folder)
        _write_sections(site)


def _write_sections(site: Path) -> None:
    """Publish single sections of the report, for pages that explain them."""
    report = (site / "report.html").read_text("utf-8")
    for name, section in (("margins", "margins"), ("densities", "densities-section")):
        rest = f"header, #notes, section:not(#{section}), #glossary {{ display: none !important; }}"
        only = f"<style>{rest}</style></head>"
        (site / f"{name}.html").write_text(report.replace("</head>", only, 1), "utf-8")


DRIVE = "docs/gallery/your-own.md"
SEED, N_VALUES, EVERY = 8, (1, 2, 4), 2


def write_drive(target: Path) -> None:
    """Measure a drive over the gallery's bridges at every second step, and draw it."""
    import plotly.graph_objects as go

    source = next(block.text for block in blocks_of(ROOT, DRIVE) if block.name == "bridges.py")
    names: dict[str, Any] = {}
    exec(compile(source, "bridges.py", "exec"), names)
    env = names["Bridges"]("rgb_array")
    observation, done, pictures = env.reset(seed=SEED)[0], False, []
    while not done:
        pictures.append(b64encode(as_picture(env.render())).decode())
        action = int(names["steer"](observation[None])[0].argmax())
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    settings = sm.Settings(gamma=0.9, trials=32)
    measured = {
        step: sm.true_criticality(
            *(names["Bridges"](), names["steer"]),
            step=step,
            n=N_VALUES,
            seed=SEED,
            settings=settings,
            scores="q",
        )
        for step in range(0, len(pictures), EVERY)
    }
    figure = go.Figure()
    for row, n in enumerate(N_VALUES):
        figure.add_scatter(
            x=list(measured),
            y=[round(each[row].mean, 3) for each in measured.values()],
            name=f"n = {n}",
            mode="lines+markers",
        )
    shown = {"xref": "paper", "yref": "paper", "x": 0.76, "y": 1, "sizex": 0.24, "sizey": 1}
    figure.add_layout_image(source=f"data:image/jpeg;base64,{pictures[0]}", **shown)
    figure.add_vline(x=0, line_dash="dot")
    steps = [
        {
            "method": "relayout",
            "label": str(step),
            "args": [
                {
                    "images[0].source": f"data:image/jpeg;base64,{picture}",
                    "shapes[0].x0": step,
                    "shapes[0].x1": step,
                }
            ],
        }
        for step, picture in enumerate(pictures)
    ]
    figure.update_layout(
        xaxis={"title": "step", "domain": [0, 0.72]},
        yaxis_title="loss by n random actions",
        legend={"orientation": "h", "y": 1.15},
        sliders=[{"steps": steps, "currentvalue": {"prefix": "step "}, "len": 0.72}],
        margin={"l": 50, "r": 10, "t": 30, "b": 10},
        template="plotly_white",
    )
    page = figure.to_html(include_plotlyjs="plotly.min.js", config={"displayModeBar": False})
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    target.write_text(page.replace("<head>", f"<head>{viewport}", 1), "utf-8")


POLICY = "zoo:pong-a3c"
"""With the margins that come with it."""
AGENTS = 6
FLEET = ("--agents", str(AGENTS), "--speed", "20", "--budget", "1200/hour", POLICY, POLICY)


def write_fleet(site: Path) -> None:
    """Watch a fleet for a while, with people who take agents over, and publish its replay."""
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w") as notes:
        folder = Path(name)
        with running(folder, *FLEET, stderr=notes) as server, _with_everybody(server) as ann:
            names = [agent["name"] for agent in ann.fleet["agents"]]
            called = _next_call(ann, names)
            ann.say(do="acknowledge", agent=called)
            _take(ann, called)
            _steer(ann, called, actions=[2, 2, 3, 0, 3, None])
            ann.say(do="give", agent=called)
            ann.entry("handed-back")
            called = _next_call(ann, names)
            _take(ann, called)
            _steer(ann, called, actions=[3, 3])
            with Person(server.address, "Ben") as ben:
                ann.say(do="hand-over", agent=called, to="Ben")
                ben.entry("handed-over")
                _steer(ben, called, actions=[2, None])
                ben.say(do="give", agent=called)
                ben.entry("handed-back")
            quiet = _next_call(ann, names)
            ann.say(do="snooze", agent=quiet, seconds=600)
            ann.entry("snoozed")
            _next_call(ann, names)
        safemargin(folder, "watch", "--replay", "watch.db", "-o", str(site / "fleet.html"))


def _with_everybody(server: Server) -> Person:
    """Return somebody who came when all agents were there."""
    while True:
        person = Person(server.address, "Ann")
        if len(person.fleet["agents"]) == AGENTS:
            return person
        person.close()
        time.sleep(0.1)


def _next_call(person: Person, names: list[str]) -> int:
    """Wait until an agent calls; return its index."""
    return names.index(person.entry("call")["agent"])


def _take(person: Person, agent: int) -> None:
    person.say(do="take", agent=agent)
    person.entry("taken")


def _steer(person: Person, agent: int, *, actions: list[int | None]) -> None:
    """Answer the next decisions of an agent; None is its own action."""
    person.say(do="look", agent=agent)
    for action in actions:
        person.act(agent, action)
        person.entry("action")


def safemargin(folder: Path, *words: str) -> None:
    """Run a command in a folder, with a signing key of its own."""
    environment = {**os.environ, "XDG_DATA_HOME": str(folder)}
    subprocess.run(
        [sys.executable, "-m", "safemargin", *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
