"""What SQLite and the disk say when a study cannot be read or written, as one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from safemargin.errors import StudyBusy, StudyCorrupt, StudyError

ROOM = 1 << 20
"""Bytes; with less, SQLite's helper files may not fit, of which it says only "disk I/O error"."""


@contextlib.contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn what happens to the study in a folder into a StudyError, or one of its kinds."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # not the disk's doing
    except (sqlite3.Error, OSError) as error:
        raise _told(folder, error) from error


def damaged(folder: Path, what: str) -> StudyCorrupt:
    """The error that says that a database must not be used any more."""
    return StudyCorrupt(
        f"the database of the study in {folder} is damaged ({what}); restore it from a copy, "
        f"or save what can be read with `sqlite3 {folder / 'study.db'} .recover`"
    )


def _told(folder: Path, error: sqlite3.Error | OSError) -> StudyError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary one
    number = getattr(error, "errno", None)
    failing = code == sqlite3.SQLITE_IOERR or number == errno.EIO
    full = code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT)
    if full or (failing and _is_full(folder)):
        return StudyError(
            f"the disk is full: {folder} keeps all that was finished before; "
            "free some room and run the same command again"
        )
    if failing:
        return StudyError(
            f"the disk under {folder} is failing, or your share of it is full ({error}): the study "
            "keeps all that was finished before; look after the disk, then run the same command "
            "again"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StudyError(f"cannot open the study in {folder}: {error}")
    if code == sqlite3.SQLITE_READONLY or isinstance(error, OSError):
        return StudyError(f"cannot write to {folder}: {error}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return StudyBusy(f"another process holds the study in {folder}; try again")
    return damaged(folder, str(error))


def _is_full(folder: Path) -> bool:
    """A disk that is only read has no room either, but is not full."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free < ROOM
