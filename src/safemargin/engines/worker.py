"""The program of a worker process: read the job, then do one task after another."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from safemargin.engines.base import Worker, pickled_error
from safemargin.engines.proof import prove


def main() -> None:
    """Serve the driver behind the file descriptor named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    try:
        job = pickle.load(sys.stdin.buffer)
        worker = Worker(job)
        connection.send_bytes(pickle.dumps(prove(job)))
        while True:
            for piece in worker.run(pickle.loads(connection.recv_bytes())):
                connection.send_bytes(pickle.dumps(piece))
            connection.send_bytes(pickle.dumps(None))
    except (EOFError, BrokenPipeError):
        return  # the driver has gone, or needs no more
    except Exception as error:  # noqa: BLE001 — the driver reports any error
        connection.send_bytes(pickled_error(error))


def _exit_with_parent(parent: int) -> None:
    """End this process once the driver has been killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
