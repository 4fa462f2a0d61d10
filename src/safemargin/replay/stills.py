"""Single pictures of many episodes, taken by several processes: each replays a whole game.

A helper process runs `main`: it reads pickled requests from standard input and writes pictures one
by one to standard output.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle

from safemargin.engines import available_cores
from safemargin.environments import EnvironmentSpec
from safemargin.errors import SafemarginError
from safemargin.replay.pictures import Camera, encode
from safemargin.replay.recordings import Recording

WORTH_A_HELPER = 5_000
"""Starting a process costs about as much as replaying this many steps."""


@dataclass(frozen=True, slots=True, eq=False)
class StillRequest:
    """One picture to take."""

    recording: Recording
    step: int

    @property
    def cost(self) -> int:
        """Steps to replay before it can be taken."""
        return sum(map(len, self.recording.earlier_lives)) + self.step


@dataclass(frozen=True, slots=True)
class Still:
    """A picture as JPEG, or why there is none."""

    jpeg: bytes | None
    fault: str | None = None


Task = tuple[int, StillRequest]
"""The index of a picture, and which one it is."""


def take_stills(
    spec: EnvironmentSpec,
    wanted: Sequence[StillRequest],
    advance: Callable[[], None] = lambda: None,
) -> list[Still]:
    """Take pictures, in several processes where that pays; return them in the order of `wanted`."""
    helpers = min(available_cores(), 1 + sum(each.cost for each in wanted) // WORTH_A_HELPER)
    stills = [Still(None, "no pictures: the process that was to take them has died")] * len(wanted)
    shares = _share_out(wanted, helpers)

    def receive(index: int, still: Still) -> None:
        stills[index] = still
        advance()

    if len(shares) <= 1:
        for share in shares:
            for index, still in _take(spec, share):
                receive(index, still)
        return stills
    with ThreadPoolExecutor(len(shares)) as listeners, contextlib.ExitStack() as ends:
        heard = []
        for share in shares:
            process = _helper()
            ends.callback(process.kill)  # also after Ctrl-C
            tasks = cloudpickle.dumps((spec, share))
            heard.append(listeners.submit(_listen, process, tasks, receive))
        for each in heard:
            each.result()
    return stills


def _share_out(wanted: Sequence[StillRequest], helpers: int) -> list[list[Task]]:
    """Share the pictures out: the most expensive first, always to the helper with least work."""
    shares: list[list[Task]] = [[] for _ in range(helpers)]
    burdens = [0] * helpers
    for index, request in sorted(enumerate(wanted), key=lambda task: -task[1].cost):
        least = burdens.index(min(burdens))
        shares[least].append((index, request))
        burdens[least] += request.cost
    return [share for share in shares if share]


def _helper() -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", "from safemargin.replay.stills import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _listen(
    process: subprocess.Popen[bytes], tasks: bytes, receive: Callable[[int, Still], None]
) -> None:
    with process, contextlib.suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
        if process.stdin is None or process.stdout is None:
            return
        process.stdin.write(tasks)
        process.stdin.close()
        while True:
            receive(*pickle.load(process.stdout))


def _take(spec: EnvironmentSpec, tasks: Sequence[Task]) -> Iterator[tuple[int, Still]]:
    try:
        camera = Camera(spec)
    except SafemarginError as error:
        yield from ((index, Still(None, _fault(error))) for index, _ in tasks)
        return
    with contextlib.closing(camera):
        for index, wanted in tasks:
            try:
                yield index, Still(encode(camera.look(wanted.recording, wanted.step)))
            except SafemarginError as error:
                camera.forget()
                yield index, Still(None, _fault(error))


def _fault(error: SafemarginError) -> str:
    text = str(error)
    return text if text.startswith("no pictures") else f"no pictures: {text}"


def main() -> None:
    """Take the pictures requested on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of an environment
    spec, tasks = pickle.load(sys.stdin.buffer)
    for answer in _take(spec, tasks):
        answers.write(pickle.dumps(answer))
        answers.flush()
