"""What a worker outside the driver's process does, and the program of a worker process."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from multiprocessing.connection import Connection

from safemargin.engines.base import Bundle, Engine, Job, Task, Worker
from safemargin.engines.proof import prove
from safemargin.errors import EngineFault, SafemarginError, describe_error


class Servant:
    """Answers pickled messages: first a job, with its proof, then tasks, with their pieces."""

    def __init__(self, name: str) -> None:
        self.name = name
        """What the driver calls this worker in a message."""

    def answers(self, message: bytes) -> Iterator[bytes]:
        """Yield the pickled answers to a message; the last one is an error if there is one."""
        try:
            for answer in self._answers(self._opened(message)):
                yield pickle.dumps(answer)
        except SafemarginError as error:
            yield pickle.dumps(error)
        except Exception as error:  # noqa: BLE001 — the driver reports any error
            yield pickle.dumps(RuntimeError(f"in a worker: {error!r}"))

    def _opened(self, message: bytes) -> Job | Task | Bundle:
        try:
            request: Job | Task | Bundle = pickle.loads(message)
        except Exception as error:
            raise EngineFault(
                f"{self.name} cannot load the environment or the policy ({describe_error(error)}); "
                "all nodes need the code that the study is made of"
            ) from error
        return request

    def _answers(self, request: Job | Task | Bundle) -> Iterator[object]:
        if isinstance(request, Job):
            self.job = request
            self.worker = Worker(request)
            yield prove(request)
        elif isinstance(request, Bundle):
            yield from self._accelerated.run(request.tasks)
        else:
            yield from self.worker.run(request)

    @cached_property
    def _accelerated(self) -> Engine:
        """What does many tasks at a time, on the accelerator that this worker sees."""
        from safemargin.engines.jax import JaxEngine

        return JaxEngine(self.job)


def main() -> None:
    """Serve the driver behind the file descriptor named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    servant = Servant("a worker process")
    try:
        for answer in servant.answers(sys.stdin.buffer.read()):
            connection.send_bytes(answer)
        while True:
            for answer in servant.answers(connection.recv_bytes()):
                connection.send_bytes(answer)
            connection.send_bytes(b"")  # the task is done
    except (EOFError, BrokenPipeError):
        return  # the driver has gone, or needs no more


def _exit_with_parent(parent: int) -> None:
    """End this process once the driver has been killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
