"""Pages of the site to click through without a server: a report, and the replay of a fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blocks import blocks_of
from run_gallery import publish

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from helpers.fleet_server import Person, Server, running  # noqa: E402  (found by the path above)


def write_all(folder: Path) -> None:
    """Write every live page into a folder of the site."""
    write_fleet(folder)
    write_report(folder)


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


POLICY = "zoo:pong-a3c"
"""With the margins that come with it."""
AGENTS = 6
FLEET = ("--agents", str(AGENTS), "--speed", "20", "--budget", "1200/hour", POLICY, POLICY)


def write_fleet(site: Path) -> None:
    """Watch a fleet for a while, with people who take agents over, and publish its replay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder, *FLEET) as server, _with_everybody(server) as ann:
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
