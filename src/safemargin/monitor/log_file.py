"""The file of an audit log: private to its owner, and locked by the one process that writes it."""

from __future__ import annotations

import os
from pathlib import Path

from safemargin.errors import AuditLogError


def hold(path: Path) -> int | None:
    """Lock out other writers, and make the file; AuditLogError where there is another writer.

    A new file can be read by its owner only, and so can those that SQLite puts beside it.
    """
    if not path.parent.is_dir():
        raise AuditLogError(f"there is no folder {path.parent} for the audit log")
    try:
        handle = _locked(path)
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise AuditLogError(f"the log {path} cannot be written: {error.strerror}") from error
    return handle


def _locked(path: Path) -> int | None:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; SQLite's own still keeps the file whole
        return None
    # A separate file: closing a second handle of the database would drop SQLite's own locks.
    handle = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AuditLogError(
            f"another server writes to {path}; stop it, or name another file with --log"
        ) from None
    return handle
