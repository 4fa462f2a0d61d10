"""SQLite files that are only read, even where nothing may be written: an archive, a shared disk."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from safemargin.errors import SafemarginError


def open_read_only(path: Path, *, refusal: type[SafemarginError]) -> sqlite3.Connection:
    """All that was ever committed; `refusal` where that cannot be had without writing."""
    try:
        return _connect(path, "mode=ro")
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF  # the primary one: it depends on why
        if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        if os.access(path.parent, os.W_OK):
            raise
    # SQLite may not make its helper files here. `immutable` goes without them, but also without
    # the log: what a killed process, or one that is still writing, has left there.
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise refusal(
            f"{path} cannot be read where it is: its newest part is still in {log.name}, which "
            "SQLite reads only where it can write; copy the whole folder to such a place"
        )
    return _connect(path, "immutable=1")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Threads may take turns: a web page answers each request in one of several.
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
