"""The audit log of a watched fleet: an append-only SQLite file, and how to read it.

Each entry is one transaction, so the log is whole after `kill -9`. Triggers prevent entries from
being changed or deleted; each entry carries a SHA-256 of itself and its predecessor's, sealed with
the user's key (`seals`). `check` finds what was altered by somebody without that key. Entries cut
off at the end leave a trace only where lines about the log are kept elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from safemargin.core.read_only import open_read_only
from safemargin.core.text import printable
from safemargin.errors import AuditLogAltered, AuditLogError, did_you_mean
from safemargin.monitor.log_file import hold
from safemargin.monitor.seals import Sealed, Sealer

FORMAT = "safemargin-audit-2"
FORMATS = ("safemargin-audit-1", FORMAT)
"""What can be read; logs of the first format have no seals."""

KINDS = {
    "server-started": "the server started",
    "server-stopped": "the server stopped",
    "joined": "{agent} joined",
    "back": "{agent} is back",
    "lost": "{agent} is lost",
    "left": "{agent} left",
    "died": "{agent} died",
    "dismissed": "{person} dismissed {agent}",
    "call": "{agent} calls",
    "release": "{agent} calls no longer",
    "acknowledged": "{person} has seen the call of {agent}",
    "snoozed": "{person} snoozed {agent}",
    "woken": "{person} lets {agent} call again",
    "drift": "{agent}: its proxies have drifted",
    "taken": "{person} took {agent} over",
    "handed-over": "{person} handed {agent} over",
    "refused": "{person} wanted {agent}",
    "action": "{person} acted for {agent}",
    "handed-back": "{agent} acts by itself again",
    "stop-due": "{agent} is to stop as soon as it can be reached",
    "stopped": "{agent} was ordered to stop",
    "absent": "{person} is gone, {agent} waits",
}
"""Every kind of entry, and its sentence."""

_LARGEST = 2**63 - 1
"""The largest integer that SQLite can hold."""

_SCHEMA = """
CREATE TABLE about (
    format TEXT NOT NULL,
    key TEXT                 -- which key seals the entries; NULL: none does
);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,      -- seconds since 1970, UTC
    kind TEXT NOT NULL,
    agent TEXT,
    episode INTEGER,
    step INTEGER,
    person TEXT,
    details TEXT NOT NULL,   -- JSON
    picture BLOB,            -- what there was to see
    digest BLOB NOT NULL,    -- SHA-256 of the previous digest and this entry
    seal BLOB                -- HMAC of the digest with the user's key
);
CREATE INDEX entries_by_agent ON entries (agent, id);
CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: entries never change'); END;
CREATE TRIGGER entries_never_vanish BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: entries never vanish'); END;
CREATE TRIGGER entries_follow_one_another BEFORE INSERT ON entries
WHEN NEW.id IS NOT (SELECT COALESCE(MAX(id), 0) + 1 FROM entries)
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: entries follow one another'); END;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    id: int
    time: float
    """Seconds since 1970."""
    kind: str
    agent: str | None = None
    episode: int | None = None
    step: int | None = None
    person: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    pictured: bool = False
    """Whether `AuditLog.picture` has a picture of it."""

    @property
    def text(self) -> str:
        """The entry in one sentence."""
        said = KINDS.get(self.kind, self.kind).format(
            agent=self.agent or "an agent", person=self.person or "somebody"
        )
        if self.kind == "action":
            said += f": {self.details.get('action_name') or self.details.get('action')}"
        why = self.details.get("why")
        return printable(f"{said}: {why}" if why else said)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "text": self.text}


class AuditLog(contextlib.AbstractContextManager["AuditLog"]):
    """The log of a watched fleet; any number of readers, and one writing process at a time."""

    def __init__(self, path: str | os.PathLike[str], *, write: bool = False) -> None:
        """Open a log to read; with `write`, to append to it, creating it where there is none."""
        self.path = Path(path)
        self._guard = threading.RLock()
        self._lock: int | None = None
        self.writable = write
        self.created = write and not self.path.exists()
        """Whether the file is new."""
        self.sealed: Sealed = "no"
        """Whether its entries are sealed with a key, and whether that key is here."""
        self._sealer: Sealer | None = None
        locked_before = Path(f"{self.path}-lock").exists()
        if write:
            self._lock = hold(self.path)
        elif not self.path.is_file():
            raise AuditLogError(f"there is no audit log {self.path}")
        try:
            self._connection = self._open()
            self._last, self._digest = self._end()
        except BaseException as error:
            self._unlock(remove=not locked_before)
            if not isinstance(error, sqlite3.Error):
                raise
            said = f"{self.path} cannot be read as an audit log ({error}); name another file"
            if self.created:
                said = f"the log {self.path} cannot be written: {error}"
            raise AuditLogError(said) from error

    def _open(self) -> sqlite3.Connection:
        if not self.writable:
            connection = open_read_only(self.path.resolve(), refusal=AuditLogError)
        else:
            # Every statement is its own transaction.
            connection = sqlite3.connect(
                self.path, check_same_thread=False, isolation_level=None, timeout=10
            )
            connection.execute("PRAGMA journal_mode = WAL")
            # Whole after any crash of the process; a power cut may lose the last entries.
            connection.execute("PRAGMA synchronous = NORMAL")
        known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if self.writable and not known:
            self._sealer = Sealer.of_user(make=True)
            name = "NULL" if self._sealer is None else f"'{self._sealer.name}'"
            about = f"INSERT INTO about VALUES ('{FORMAT}', {name});"
            connection.executescript("BEGIN;" + _SCHEMA + about + "COMMIT;")
        elif not {"about", "entries"} <= known:
            connection.close()
            raise AuditLogError(f"{self.path} is not an audit log of safemargin; name another file")
        try:
            self._about(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _about(self, connection: sqlite3.Connection) -> None:
        """Read the log's format, and find the key of its seals."""
        rows = connection.execute("SELECT * FROM about").fetchall()
        if len(rows) != 1:
            raise AuditLogError(f"{self.path} does not say what it is: it was damaged or altered")
        found, *key = rows[0]
        if found not in FORMATS or len(key) != FORMATS.index(found):
            raise AuditLogError(f"{self.path} has the format {found!r}, not {FORMAT!r}")
        self._has_seals = found != FORMATS[0]
        if not self._has_seals or key[0] is None:
            self.sealed, self._sealer = "no", None
            return
        sealer = Sealer.of_user()
        ours = sealer is not None and sealer.name == key[0]
        self.sealed, self._sealer = ("yours", sealer) if ours else ("other", None)
        if self.writable and not ours:
            raise AuditLogError(
                f"{self.path} is sealed with a key that is not yours on this machine, so it cannot "
                "be continued here; name another file with --log"
            )

    def _end(self) -> tuple[int, bytes]:
        row = self._connection.execute(
            "SELECT id, digest FROM entries ORDER BY id DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return 0, b""
        return int(row[0]), row[1] if isinstance(row[1], bytes) else b""  # `check` finds others

    # -- writing -------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        agent: str | None = None,
        *,
        episode: int | None = None,
        step: int | None = None,
        person: str | None = None,
        picture: bytes | None = None,
        when: float | None = None,
        **details: Any,
    ) -> Entry:
        """Append one entry; it is on disk when this returns."""
        if kind not in KINDS:
            raise AuditLogError(f"the kind {kind!r} is unknown; {did_you_mean(kind, KINDS)}")
        if not self.writable:
            raise AuditLogError(f"{self.path} was opened for reading")
        written = json.dumps(details, allow_nan=False, sort_keys=True)
        with self._guard:
            moment = time.time() if when is None else when
            fields = (self._last + 1, moment, kind, agent, episode, step, person)
            digest = _digest(self._digest, (*fields, written), picture)
            row: tuple[Any, ...] = (*fields, written, picture, digest)
            if self._has_seals:
                row += (None if self._sealer is None else self._sealer.seal(digest),)
            query = f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})"
            self._ask(query, row, refusal="cannot be written")
            self._last, self._digest = fields[0], digest
        return Entry(*fields, details, picture is not None)

    def tidy(self) -> None:
        """Move entries from SQLite's journal into the file, on a separate connection.

        After the first call, `add` no longer does this itself: it is slow on a busy disk.
        """
        with self._guard:
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as other:
                other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise AuditLogError(f"{self.path} cannot be tidied: {error}") from error

    # -- reading -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._ask("SELECT COUNT(*) FROM entries")[0][0])

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(
        self, *, agent: str | None = None, after: int = 0, most: int | None = None
    ) -> Iterator[Entry]:
        """Yield the entries after a number in order, of all agents or of one; at most `most`."""
        after = max(0, min(after, _LARGEST))
        most = None if most is None else max(0, most)
        rows = self._rows("picture IS NOT NULL", after, agent, page=min(most or 1000, 1000))
        for row in islice(rows, most):
            *fields, details, pictured = row
            yield Entry(*(*fields, json.loads(details), bool(pictured)))

    def picture(self, entry: int) -> bytes | None:
        """Return the picture of an entry, a JPEG or PNG file; None where it has none."""
        if not 0 < entry <= _LARGEST:
            return None
        rows = self._ask("SELECT picture FROM entries WHERE id = ?", (entry,))
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    def check(self) -> int:
        """Return how many entries there are; AuditLogAltered where one was altered or is missing.

        Seals are checked if they were made with this user's key: see `sealed`. A log begins with
        the start of a server; only one that was just created may be empty.
        """
        further = "picture, digest, " + ("seal" if self._has_seals else "NULL")
        digest, number = b"", 0
        for number, row in enumerate(self._rows(further, page=500), start=1):
            if row[0] != number or (number == 1 and row[2] != "server-started"):
                raise AuditLogAltered(f"{self.path}: entry {number} is missing")
            try:
                digest = _digest(digest, row[:8], row[8])
            except TypeError:  # bytes where there was text, or the other way round
                digest = b""
            if digest != row[9]:
                raise AuditLogAltered(
                    f"{self.path}: entry {number} was altered after it was written, or one "
                    "before it was"
                )
            if self.sealed == "no" and row[10] is not None:
                raise AuditLogAltered(
                    f"{self.path}: entry {number} is sealed, and the log no longer says with which "
                    "key"
                )
            if self._sealer is not None and not self._sealer.fits(digest, row[10]):
                raise AuditLogAltered(
                    f"{self.path}: entry {number} is not sealed with your key: it was altered "
                    "without that key, or one before it was"
                )
        if number == 0 and not self.created:
            raise AuditLogAltered(f"{self.path}: entry 1 is missing, the log is empty")
        return number

    def head(self) -> dict[str, Any] | None:
        """Return what a line about the newest entry says; None while there is no entry."""
        with self._guard:
            first = self.digest(1)
            if first is None:
                return None
            number, digest = self._end()
        return {"log": first.hex(), "entry": number, "digest": digest.hex()}

    def digest(self, entry: int) -> bytes | None:
        """Return the digest of an entry, which covers all before it; None if there is no such."""
        if not 0 < entry <= _LARGEST:
            return None
        rows = self._ask("SELECT digest FROM entries WHERE id = ?", (entry,))
        return bytes(rows[0][0]) if rows else None

    def _rows(
        self, columns: str, after: int = 0, agent: str | None = None, *, page: int
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows in order, with further columns after the first eight, a page at a time."""
        while rows := self._ask(
            f"SELECT id, time, kind, agent, episode, step, person, details, {columns} "
            "FROM entries WHERE id > ? AND (? IS NULL OR agent = ?) ORDER BY id LIMIT ?",
            (after, agent, agent, page),
        ):
            yield from rows
            after = rows[-1][0]

    def _ask(
        self, query: str, values: tuple[Any, ...] = (), refusal: str = "cannot be read"
    ) -> list[Any]:
        with self._guard:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise AuditLogError(f"{self.path} {refusal}: {error}") from error

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file, so that another process may write to it."""
        with self._guard:
            self._connection.close()
            self._unlock()

    def _unlock(self, *, remove: bool = False) -> None:
        if self._lock is not None:
            if remove:
                Path(f"{self.path}-lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def __exit__(self, *exception: object) -> None:
        self.close()


def _digest(before: bytes, row: tuple[Any, ...], picture: bytes | None) -> bytes:
    hashed = hashlib.sha256(before)
    hashed.update(json.dumps(row).encode())
    if picture is not None:
        hashed.update(hashlib.sha256(picture).digest())
    return hashed.digest()
