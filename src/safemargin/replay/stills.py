"""Single pictures of many episodes: each plays its game from the start, so cores share them.

A helper process runs `main`: tasks come pickled on its standard input, pictures go back one by one
on its standard output.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import cloudpickle

from safemargin.engines import available_cores
from safemargin.environments import EnvironmentSpec
from safemargin.errors import SafemarginError
from safemargin.replay.pictures import Camera, encode
from safemargin.replay.recordings import Recording

WORTH_A_HELPER = 5_000
"""Steps to play; starting a process costs about as much."""


@dataclass(frozen=True, slots=True, eq=False)
class StillRequest:
    """A picture to take."""

    recording: Recording
    step: int

    @property
    def cost(self) -> int:
        """Steps to play until it can be taken."""
        return sum(map(len, self.recording.earlier_lives)) + self.step


@dataclass(frozen=True, slots=True)
class Still:
    """A picture as JPEG, or why there is none."""

    jpeg: bytes | None
    fault: str | None = None


def take_stills(
    spec: EnvironmentSpec,
    wanted: Sequence[StillRequest],
    advance: Callable[[], None] = lambda: None,
) -> list[Still]:
    """The pictures in the order of the wishes; where it pays, several processes take them."""
    helpers = min(available_cores(), 1 + sum(each.cost for each in wanted) // WORTH_A_HELPER)
    stills = [Still(None, "no pictures: the process that was to take them has died")] * len(wanted)
    shares = _share_out(wanted, helpers)

    def receive(place: int, still: Still) -> None:
        stills[place] = still
        advance()

    if len(shares) == 1:
        for place, still in _take(spec, [(place, wanted[place]) for place in shares[0]]):
            receive(place, still)
        return stills
    with contextlib.ExitStack() as ends:
        threads = []
        for share in shares:
            tasks = cloudpickle.dumps((spec, [(place, wanted[place]) for place in share]))
            thread = threading.Thread(target=_listen, args=(ends, tasks, receive), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
    return stills


def _share_out(wanted: Sequence[StillRequest], helpers: int) -> list[list[int]]:
    """Which pictures each helper takes: the dearest first, always to the least burdened."""
    shares: list[list[int]] = [[] for _ in range(max(helpers, 1))]
    burdens = [0] * len(shares)
    for place in sorted(range(len(wanted)), key=lambda place: -wanted[place].cost):
        least = burdens.index(min(burdens))
        shares[least].append(place)
        burdens[least] += wanted[place].cost
    return [share for share in shares if share] or [[]]


def _listen(
    ends: contextlib.ExitStack, tasks: bytes, receive: Callable[[int, Still], None]
) -> None:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", "from safemargin.replay.stills import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    ends.callback(process.kill)  # also where Ctrl-C ends the waiting
    with process, contextlib.suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
        if process.stdin is None or process.stdout is None:
            return
        process.stdin.write(tasks)
        process.stdin.close()
        while True:
            receive(*pickle.load(process.stdout))


def _take(
    spec: EnvironmentSpec, tasks: Sequence[tuple[int, StillRequest]]
) -> Iterator[tuple[int, Still]]:
    try:
        camera = Camera(spec)
    except SafemarginError as error:
        yield from ((place, Still(None, _fault(error))) for place, _ in tasks)
        return
    try:
        for place, wanted in tasks:
            try:
                yield place, Still(encode(camera.look(wanted.recording, wanted.step)))
            except SafemarginError as error:
                camera.forget()
                yield place, Still(None, _fault(error))
    finally:
        camera.close()


def _fault(error: SafemarginError) -> str:
    text = str(error)
    return text if text.startswith("no pictures") else f"no pictures: {text}"


def main() -> None:
    """Take the pictures that standard input asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an environment prints is no picture
    spec, tasks = pickle.load(sys.stdin.buffer)
    for answer in _take(spec, tasks):
        answers.write(pickle.dumps(answer))
        answers.flush()
