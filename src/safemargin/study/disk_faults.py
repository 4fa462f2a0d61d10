"""Turns errors of SQLite and the disk into one sentence about the study."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from safemargin.core.text import printable
from safemargin.errors import StudyBusy, StudyCorrupt, StudyError

ROOM = 1 << 20
"""Bytes; with less, SQLite's auxiliary files may not fit, which it reports as "disk I/O error"."""


@contextlib.contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite and the disk into a StudyError, or one of its kinds."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # not caused by the disk
    except UnicodeDecodeError as error:  # in a name of the schema, or a message of SQLite
        raise damaged(folder, str(error)) from error
    except (sqlite3.Error, OSError) as error:
        raise _as_study_error(folder, error) from error


def damaged(folder: Path, what: str) -> StudyCorrupt:
    """Return the error for a database that must no longer be used."""
    found = printable(" ".join(what.split()))
    return StudyCorrupt(
        f"the database of the study in {folder} is damaged ({found}); restore it from a copy, "
        f"or save what can be read with `sqlite3 {folder / 'study.db'} .recover`"
    )


def _as_study_error(folder: Path, error: sqlite3.Error | OSError) -> StudyError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary one
    number = getattr(error, "errno", None)
    failing = code == sqlite3.SQLITE_IOERR or number == errno.EIO
    full = code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT)
    if full or (failing and _is_full(folder)):
        return StudyError(
            f"the disk is full: {folder} keeps everything finished so far; "
            "free some space and run the same command again"
        )
    if failing:
        return StudyError(
            f"the disk under {folder} is failing, or your quota is used up ({error}): the study "
            "keeps everything finished so far; check the disk, then run the same command again"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StudyError(f"cannot open the study in {folder}: {error}")
    if code == sqlite3.SQLITE_READONLY or isinstance(error, OSError):
        return StudyError(f"cannot write to {folder}: {error}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return StudyBusy(f"another process holds the study in {folder}; try again")
    return damaged(folder, str(error))


def _is_full(folder: Path) -> bool:
    """Return whether the disk is full; a read-only one has no room either, but is not full."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free < ROOM
