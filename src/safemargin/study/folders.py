"""Keeps a study's folder to one writing process and one study, whatever other processes do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from safemargin.errors import StudyBusy


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; StudyBusy if another one holds the lock."""
    try:
        import fcntl
    except ImportError:  # no such lock on Windows; SQLite's own still keeps the file whole
        yield
        return
    # The folder is locked, not the file: closing a second handle to the database file would
    # release SQLite's own locks.
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyBusy(
                f"another process is collecting into {folder}; "
                "wait for it or collect into another folder"
            ) from None
        yield
    finally:
        os.close(handle)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a finished file its name; FileExistsError if the name is taken by then."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:  # no hard links on this disk, and renaming might replace somebody's file
        with held(target.parent):
            if target.exists():
                raise FileExistsError(target) from None
            draft.rename(target)
    else:
        draft.unlink()
