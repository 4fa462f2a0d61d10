"""The engine with worker processes: each has its own environment and policy.

Workers are started as fresh interpreters, so a user's script needs no `__main__` guard and no
thread or lock is inherited. A worker that dies is replaced and its task done again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO

import cloudpickle

from safemargin.engines.base import Job, Piece, Task
from safemargin.errors import EngineFault

ATTEMPTS = 3
"""How often one task may kill its worker before the study stops."""


@dataclass
class _Process:
    """One worker process, seen from the driver."""

    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]
    task: Task | None = None

    def last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.log.close()


@dataclass
class _Queue:
    """Tasks to do; those handed back by a dead worker come first."""

    fresh: Iterator[Task]
    returned: deque[Task] = field(default_factory=deque)

    def next(self) -> Task | None:
        return self.returned.popleft() if self.returned else next(self.fresh, None)


class ProcessEngine:
    """Runs tasks in worker processes on this machine."""

    def __init__(self, job: Job, workers: int) -> None:
        # A file, because a pipe would block until each new worker has started up and reads it.
        self._job = tempfile.NamedTemporaryFile(prefix="safemargin-")  # noqa: SIM115 — see close
        self._job.write(cloudpickle.dumps(job))
        self._job.flush()
        self._workers: list[_Process] = []
        self._count = workers

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """The pieces as they are finished."""
        queue = _Queue(iter(tasks))
        failures: dict[int, int] = {}
        while True:
            self._hand_out(queue)
            busy = {worker.connection: worker for worker in self._workers if worker.task}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    message = pickle.loads(worker.connection.recv_bytes())
                except (EOFError, OSError):
                    self._replace(worker, queue, failures)
                    continue
                if isinstance(message, Piece):
                    yield message
                elif isinstance(message, BaseException):
                    raise message
                else:
                    worker.task = None

    def _hand_out(self, queue: _Queue) -> None:
        """Give every idle worker a task, starting workers only as long as there is work."""
        for worker in self._workers:
            if worker.task is None:
                worker.task = queue.next()
                if worker.task is None:
                    return
                self._send(worker)
        while len(self._workers) < self._count:
            task = queue.next()
            if task is None:
                return
            worker = self._start()
            self._workers.append(worker)
            worker.task = task
            self._send(worker)

    def _send(self, worker: _Process) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed, and replaced, on receiving
            worker.connection.send_bytes(pickle.dumps(worker.task))

    def _replace(self, worker: _Process, queue: _Queue, failures: dict[int, int]) -> None:
        task = worker.task
        code = worker.process.wait()
        words = worker.last_words()
        self._workers.remove(worker)
        worker.stop()
        if task is None:
            return
        failures[id(task)] = failures.get(id(task), 0) + 1
        if failures[id(task)] >= ATTEMPTS:
            raise EngineFault(
                f"a worker process died {ATTEMPTS} times on the same task (exit status {code}; "
                f"its last words: {words}); what was finished is kept, and running in one "
                "process (--workers 1) shows more"
            )
        queue.returned.append(task)

    def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the worker
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with open(self._job.name, "rb") as job:
            process = subprocess.Popen(
                [sys.executable, "-m", "safemargin.engines.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=job,
                stdout=log,
                stderr=log,
                env=environment,
            )
        theirs.close()
        return _Process(process, Connection(ours.detach()), log)

    def close(self) -> None:
        """Stop the workers; what they were doing is dropped."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._job.close()
