"""The engine with worker processes, each with its own environment and policy.

Workers start as fresh interpreters, so a user's script needs no `__main__` guard and no thread or
lock is inherited. A worker that dies is replaced and its task repeated.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO

import cloudpickle

from safemargin.engines.base import Job, Piece, Task
from safemargin.engines.proof import Proof, Witness
from safemargin.engines.tasks import Attempt, TaskQueue

ADVICE = (
    "workers import all code afresh: restart this program if a file was edited, and let the "
    "environment and the policy set up their own state"
)
"""What to do if a worker process does something else; it inherits variables and folder."""


@dataclass
class _Process:
    """One worker process, seen from the driver."""

    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]
    attempt: Attempt | None = None

    def last_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.log.close()


class ProcessEngine:
    """Runs tasks in worker processes on this machine."""

    def __init__(self, job: Job, workers: int) -> None:
        # A file, because writing to a pipe would block until the new worker has started.
        self._job = tempfile.NamedTemporaryFile(prefix="safemargin-")  # noqa: SIM115 — see close
        self._job.write(cloudpickle.dumps(job))
        self._job.flush()
        self._workers: list[_Process] = []
        self._woken, self._waker = Pipe(duplex=False)
        self._witness = Witness(job, advice=ADVICE)
        self.workers = workers

    def proof(self) -> Proof:
        """Return what the environment and the policy do in the driver."""
        return self._witness.own

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Yield the pieces as they finish."""
        queue = TaskQueue(tasks)
        while True:
            self._hand_out(queue)
            busy = {worker.connection: worker for worker in self._workers if worker.attempt}
            if not busy:
                return
            for connection in wait([*busy, self._woken]):
                if connection is self._woken:
                    return
                worker = busy[connection]  # type: ignore[index]
                try:
                    answer = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    self._replace(worker, queue)
                    continue
                if answer:
                    yield from self._witness.read(answer, worker="a worker process")
                else:
                    worker.attempt = None

    def _hand_out(self, queue: TaskQueue) -> None:
        """Give every idle worker a task, and start workers while there are more tasks."""
        idle = [worker for worker in self._workers if worker.attempt is None]
        while idle or len(self._workers) < self.workers:
            attempt = queue.next()
            if attempt is None:
                return
            worker = idle.pop(0) if idle else self._start()
            worker.attempt = attempt
            with contextlib.suppress(OSError):  # a dead one is noticed on receiving, and replaced
                worker.connection.send_bytes(pickle.dumps(attempt.task))

    def _replace(self, worker: _Process, queue: TaskQueue) -> None:
        code = worker.process.wait()
        words = worker.last_line()
        self._workers.remove(worker)
        worker.stop()
        if worker.attempt is not None:
            queue.retry(
                worker.attempt,
                worker="a worker process",
                reason=f"exit status {code}; its last words: {words}",
                advice="running in one process (--workers 1)",
            )

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
        worker = _Process(process, Connection(ours.detach()), log)
        self._workers.append(worker)
        return worker

    def interrupt(self) -> None:
        """Make `run` return at once, from any thread; the engine can then only be closed."""
        with contextlib.suppress(OSError):  # closed meanwhile
            self._waker.send_bytes(b"stop")

    def close(self) -> None:
        """Stop the workers; unfinished tasks are dropped."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._woken.close()
        self._waker.close()
        self._job.close()
