"""Seals an audit log with the user's key, and checks it against lines kept elsewhere."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safemargin.errors import AuditLogAltered, AuditLogError, InvalidInput
from safemargin.monitor.notifications import is_address, post_json
from safemargin.study.signing import user_key

if TYPE_CHECKING:
    from safemargin.monitor.audit import AuditLog

Sealed = Literal["yours", "other", "no"]
"""Whether a log is sealed: with this user's key, with one that is not here, or not at all."""

ANCHOR_EVERY = 60.0
"""Seconds between two lines about a log."""
ANCHOR_TIMEOUT = 10.0


class Sealer:
    """Makes and checks the seals of entries with one user's key."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"safemargin audit log", "sha256")
        self.name = hashlib.sha256(b"safemargin audit key" + self._key).hexdigest()[:16]
        """Identifies the key without revealing anything about it."""

    @classmethod
    def of_user(cls, *, make: bool = False) -> Sealer | None:
        """Return the sealer of this user; None if they have no key, or none can be made."""
        key = user_key(make=make)
        return None if key is None else cls(key)

    def seal(self, digest: bytes) -> bytes:
        """Return the seal of an entry; its digest covers the entry and all before it."""
        return hmac.digest(self._key, digest, "sha256")

    def fits(self, digest: bytes, seal: Any) -> bool:
        """Whether this key made the seal."""
        return isinstance(seal, bytes) and hmac.compare_digest(self.seal(digest), seal)


# -- lines kept elsewhere ----------------------------------------------------------------------


class Anchor:
    """Writes a line about the newest entry of a log to a file or an address, at intervals."""

    def __init__(self, target: str, *, every: float = ANCHOR_EVERY) -> None:
        """`target` is a file to append to, or an http(s) address to post to."""
        self.target = target
        self.every = every
        self.delivered = self.failed = 0
        self.last_error = ""
        self.on_failure: Callable[[Anchor], Any] = lambda anchor: None
        """Called after each line that could not be written."""
        self._is_address = is_address(target, ("http", "https"))
        if not self._is_address and ("://" in target or not Path(target).parent.is_dir()):
            raise InvalidInput(
                "an anchor is a file in an existing folder, or an http:// or https:// address, "
                f"got {target!r}"
            )
        self._log: AuditLog | None = None
        self._known: dict[str, Any] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="Anchor")

    def start(self, log: AuditLog) -> None:
        """Begin with the entry that is the newest now; the log must stay open until `close`."""
        self._log = log
        self._thread.start()

    def close(self, *, timeout: float = 2 * ANCHOR_TIMEOUT) -> None:
        """Write the last line, and stop."""
        self._ending.set()
        if self._log is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.is_set()
            self._write()
            self._ending.wait(self.every)

    def _write(self) -> None:
        assert self._log is not None  # since `start`
        try:
            head = self._log.head()
            if head is None or head == self._known:
                return
            line = {**head, "time": time.time()}
            if self._is_address:
                post_json(self.target, line, timeout=ANCHOR_TIMEOUT)
            else:
                with open(self.target, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        except Exception as error:  # noqa: BLE001  whatever it is, the fleet continues
            self.failed += 1
            self.last_error = f"{type(error).__name__}: {error}"
            self.on_failure(self)
        else:
            self._known = head
            self.delivered += 1


def check_anchors(log: AuditLog, path: Path) -> int:
    """Compare a log, already checked in itself, with the lines in a file.

    Return the number of the last entry that a line is about; AuditLogAltered where one differs.
    """
    begun = log.digest(1)
    last = 0
    for line in _lines(path):
        if begun is None or line["log"] != begun.hex():
            continue
        entry = line["entry"]
        found = log.digest(entry)
        if found is None:
            raise AuditLogAltered(f"{log.path}: entry {entry} is missing, {path} has a line on it")
        if found.hex() != line["digest"]:
            raise AuditLogAltered(
                f"{log.path}: entry {entry}, or one before it, was altered after {path} got a line "
                "on it"
            )
        last = max(last, entry)
    if not last:
        raise AuditLogAltered(
            f"{path} has no line on {log.path}: the log was replaced or rewritten from its first "
            "entry, or the lines are about another log"
        )
    return last


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditLogError(f"the anchors in {path} cannot be read: {error}") from error
    wanted = {"log": str, "entry": int, "digest": str}
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or any(
            type(line.get(name)) is not kind for name, kind in wanted.items()
        ):
            raise AuditLogError(
                f"line {number} of {path} is no anchor of an audit log; name the file that "
                "`watch --anchor` wrote, or the lines that the address received"
            )
        yield line
