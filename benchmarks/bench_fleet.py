"""How well a fleet is served: python benchmarks/bench_fleet.py

200 simulated agents in a separate process, each with its own connection, report 15
decisions a second (scores; the server's monitors find the margins) and pictures as often as it asks
for them. A page's connection receives every decision. All clocks are the machine's own monotonic
one, so that times of different processes can be subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from bench_monitor import margins
from results import Results, add_options
from websockets.asyncio.client import connect as connect_agent
from websockets.sync.client import connect as connect_page

TOKEN = "the token of the benchmark"
ACTIONS = 6
CYCLE = 150
SETTLE = 5.0
"""Seconds between the last agent's arrival and the first decision that counts."""


def shared(path: Path, agents: int, steps: int, mode: str) -> Any:
    """Times [agents, steps] that two processes share; 0 where nothing happened yet."""
    return np.memmap(path, np.float64, mode, shape=(agents, steps))


# -- the agents' process -----------------------------------------------------------------------


def picture() -> bytes:
    """Return a JPEG as large as that of an Atari game."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (21, 16, 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(np.kron(noise, np.ones((10, 10, 1), np.uint8))).save(target, "JPEG", quality=82)
    return target.getvalue()


async def agent(number: int, options: argparse.Namespace, times: Any, shown: bytes) -> None:
    generator = np.random.default_rng(number)
    # Scores swell and ebb over ten seconds: many agents call once in each.
    swell = 1 + 0.6 * np.sin(np.linspace(0, 2 * np.pi, CYCLE) + generator.uniform(0, 6))
    table = np.outer(swell, generator.normal(0, 1.5, ACTIONS)).round(5).tolist()
    every: list[float | None] = [None]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = options.address.replace("http", "ws") + "agents"
    async with connect_agent(address, additional_headers=headers, compression=None) as socket:
        await socket.send(json.dumps({"kind": "hello", "name": f"agent {number:03}"}))

        async def listen() -> None:
            async for text in socket:
                message = json.loads(text)
                if message["kind"] == "pictures":
                    every[0] = message["every"]

        listening = asyncio.create_task(listen())
        pause = 1 / options.rate
        # Agents of a fleet do not act in step; the start leaves time for all to connect.
        due = options.begin + number * pause / options.agents
        pictured = due + generator.uniform(0, 5)
        for step in range(times.shape[1]):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += pause
            if every[0] is not None and time.monotonic() - pictured >= every[0]:
                pictured = time.monotonic()
                await socket.send(b"P" + step.to_bytes(4, "big") + shown)
            message = {
                "kind": "decision",
                "step": step,
                "scores": table[step % CYCLE],
                "proposed": 0,
            }
            times[number, step] = time.monotonic()
            await socket.send(json.dumps(message))
        await asyncio.sleep(2)
        await socket.send('{"kind": "left"}')
        listening.cancel()


async def agents(options: argparse.Namespace) -> None:
    times = shared(options.times, options.agents, options.steps, "r+")
    shown = picture()
    await asyncio.gather(*(agent(each, options, times, shown) for each in range(options.agents)))


# -- the page ----------------------------------------------------------------------------------


class Watcher(threading.Thread):
    """A page's connection, which notes when each decision arrives."""

    def __init__(self, address: str, token: str, count: int, steps: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.headers = {"Cookie": f"safemargin_page_{urlsplit(address).port}={token}"}
        self.arrived = np.zeros((count, steps))
        self.twice = self.pictures = self.received = 0
        self.enough = threading.Event()
        self.ready = threading.Event()

    def run(self) -> None:
        names: dict[int, int] = {}
        way = self.address.replace("http", "ws") + "live"
        with connect_page(
            way, additional_headers=self.headers, compression=None, max_size=None
        ) as socket:
            socket.send(json.dumps({"do": "hello", "secret": "the secret of the benchmark"}))
            while not self.enough.is_set():
                try:
                    data = socket.recv(timeout=0.5)
                except TimeoutError:
                    continue
                now = time.monotonic()
                if isinstance(data, bytes):
                    self.pictures += 1
                    continue
                message = json.loads(data)
                if message["kind"] in ("fleet", "agents"):
                    self.ready.set()
                    for each in message["agents"]:
                        names[each["index"]] = int(each["name"].split()[1])
                elif message["kind"] == "decisions":
                    for index, _, step, *_ in message["rows"]:
                        cell = names[index], step
                        self.twice += self.arrived[cell] > 0
                        self.arrived[cell] = now
                        self.received += 1


def memory(process: int) -> float:
    """Return the resident memory of a process in megabytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the server has ended")


# -- the whole ---------------------------------------------------------------------------------


def run(options: argparse.Namespace, folder: Path) -> None:
    load_before = os.getloadavg()[0]
    path, log = folder / "margins.json", folder / "watch.db"
    margins().save(path)
    command = [sys.executable, "-m", "safemargin", "watch", "--remote", str(path), "--json"]
    server = subprocess.Popen(
        [*command, "--tolerance", "1", "--no-browser", "--port", "0", "--log", str(log)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SAFEMARGIN_TOKEN": TOKEN},
    )
    assert server.stdout is not None
    address, _, token = json.loads(server.stdout.readline())["address"].partition("?token=")
    steps = int(options.minutes * 60 * options.rate)
    times_path = folder / "times"
    shared(times_path, options.agents, steps, "w+").flush()
    watcher = Watcher(address, token, options.agents, steps)
    watcher.start()
    watcher.ready.wait(30)
    begin = time.monotonic() + SETTLE + options.agents / 50
    fleet = subprocess.Popen(
        [
            *[sys.executable, __file__, "--role", "agents", "--address", address],
            *["--times", str(times_path), "--agents", str(options.agents)],
            *["--rate", str(options.rate), "--steps", str(steps), "--begin", str(begin)],
        ]
    )
    lap = options.minutes * 60
    marks = []
    # The tracks of 1,800 decisions fill in the first two minutes; memory is flat after that.
    for share in (0.05, 0.4, 0.7, 1.0):
        time.sleep(max(0.0, begin + share * lap - time.monotonic()))
        marks.append(memory(server.pid))
    fleet.wait(timeout=120)
    time.sleep(2)
    watcher.enough.set()
    watcher.join(10)
    server.send_signal(2)
    server.communicate(timeout=60)
    sent = np.array(shared(times_path, options.agents, steps, "r"))
    report(options, sent, watcher, marks, load_before, log)


def report(
    options: argparse.Namespace,
    sent: np.ndarray,
    watcher: Watcher,
    marks: list[float],
    load_before: float,
    log: Path,
) -> None:
    from safemargin.monitor.audit import AuditLog

    count, lost = int((sent > 0).sum()), int(((sent > 0) & (watcher.arrived == 0)).sum())
    both = (sent > 0) & (watcher.arrived > 0)
    delays = (watcher.arrived - sent)[both] * 1000
    half, most = np.percentile(delays, [50, 99])
    wanted = options.agents * options.rate
    span = sent[sent > 0].max() - sent[sent > 0].min()
    with AuditLog(log) as opened:
        entries = opened.check()
    results = Results(f"python benchmarks/bench_fleet.py --minutes {options.minutes:g}", options)
    fleet = f"{options.agents} agents, {count / span:,.0f} of {wanted:,.0f} decisions/s"
    load = f"load {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(
        f"{count:,} decisions sent, {watcher.received:,} received, {lost} lost, {watcher.twice} "
        f"twice; {watcher.pictures:,} pictures; {entries:,} entries in the log, which is whole"
    )
    print(f"server memory, MB, at 5, 40, 70, 100 %: {', '.join(f'{mark:.1f}' for mark in marks)}")
    results.record("fleet_decisions_lost", lost, 0, note=f"of {count:,}; {fleet}; {load}")
    note = f"goal: at most; ms from decision to page, median {half:.0f}, longest {delays.max():.0f}"
    results.record("fleet_delay_99", float(most), 250, note=f"{note}; {fleet}; {load}")
    note = f"server memory at the end / at 40 %: {marks[3]:.1f} / {marks[1]:.1f} MB; {fleet}"
    results.record("fleet_memory_growth", marks[3] / marks[1], None, note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="default 5")
    parser.add_argument("--agents", type=int, default=200, help="default 200")
    parser.add_argument("--rate", type=float, default=15.0, help="decisions a second (default 15)")
    add_options(parser, quick="half a minute")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "agents":
        asyncio.run(agents(given))
    else:
        given.minutes = 0.5 if given.quick else given.minutes
        with tempfile.TemporaryDirectory() as folder:
            run(given, Path(folder))
