"""The program a worker process runs: read the job, then do task after task."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from safemargin.engines.base import Worker
from safemargin.errors import SafemarginError


def main() -> None:
    """Serve the driver behind the file descriptor named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    try:
        worker = Worker(pickle.load(sys.stdin.buffer))
        while True:
            for piece in worker.run(pickle.loads(connection.recv_bytes())):
                connection.send_bytes(pickle.dumps(piece))
            connection.send_bytes(pickle.dumps(None))
    except (EOFError, BrokenPipeError):
        return  # the driver is gone or has all it wanted
    except SafemarginError as error:
        connection.send_bytes(pickle.dumps(error))
    except Exception as error:  # noqa: BLE001 — whatever it is, the driver must hear of it
        traceback.print_exc()
        connection.send_bytes(pickle.dumps(RuntimeError(f"in a worker: {error!r}")))


def _exit_with_parent(parent: int) -> None:
    """End this process when the driver was killed and can no longer say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
