"""Reading SQLite files, also where nothing can be written: an archive, a shared disk."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from safemargin.errors import SafemarginError


def open_read_only(path: Path, *, refusal: type[SafemarginError]) -> sqlite3.Connection:
    """Open a database for reading; raise `refusal` if that would leave out committed data."""
    try:
        return _connect(path, "mode=ro")
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF  # the extended code depends on the cause
        if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        if os.access(path.parent, os.W_OK):
            raise
    # SQLite cannot create its helper files here. `immutable` works without them, but ignores
    # the log, where a process that was killed or is still writing leaves its newest data.
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise refusal(
            f"{path} cannot be read where it is: its newest part is still in {log.name}, which "
            "SQLite reads only where it can write; copy the whole folder to a writable disk"
        )
    return _connect(path, "immutable=1")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Several threads may use it in turn: a web server answers requests in a pool of threads.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=30,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA schema_version")  # the file is opened only now
    except BaseException:
        connection.close()
        raise
    return connection
