"""Who may do what: agents and people each need their own token."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from safemargin.errors import InvalidInput

SHORTEST_TOKEN = 16
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
"""Hosts that only this machine can reach."""


@dataclass(frozen=True, slots=True)
class Access:
    """Two unrelated tokens: with an agent's token nobody can steer other agents."""

    token: str
    """For agents."""
    page_token: str | None = None
    """For people; None: they need none (`--no-token`)."""
    _visits: set[str] = field(default_factory=set, repr=False)

    def agent(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers of a request hold the agents' token."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _same(given.strip(), self.token)

    def person(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        """Whether the cookies of a request hold the people's token, where one is needed."""
        given = cookies.get(cookie_name(headers), "")
        return self.page_token is None or _same(given, self.page_token)

    def page(self, given: str) -> bool:
        """Whether this is the people's token, or one from `visit` that nobody has used."""
        if given in self._visits:
            self._visits.discard(given)
            return True
        return self.page_token is not None and _same(given, self.page_token)

    @property
    def query(self) -> str:
        """What people append to the page's address."""
        return "" if self.page_token is None else f"?token={self.page_token}"

    def visit(self) -> str:
        """Return a query that opens the page once.

        The command line of a browser, which other users can see, holds nothing that lasts.
        """
        if self.page_token is None:
            return ""
        self._visits.add(token := new_token())
        return f"?token={token}"


def cookie_name(headers: Mapping[str, str]) -> str:
    """Return the name of the cookie for the port that a browser asked.

    Browsers send a cookie to all ports of a host: two servers would replace each other's.
    """
    port = re.search(r":(\d{1,5})$", headers.get("host", ""), re.ASCII)
    return "safemargin_page" + (f"_{port[1]}" if port else "")


def same_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser's request comes from this server's own page, not from another one.

    A page on another port of this machine is another one, too. Programs send neither header.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None:
        return site in (None, "same-origin", "none")
    # Behind a proxy that replaces the host, only the browser knows.
    return urlsplit(origin).netloc == headers.get("host") or site == "same-origin"


def check_host(host: str, *, no_token: bool) -> None:
    """Refuse to serve other machines without a token."""
    if no_token and host not in LOOPBACK:
        raise InvalidInput(
            f"--no-token is for pages that only this machine can reach, and --host {host} is for "
            "others, too; leave one of them out"
        )


def find_token(given: Path | None, log: Path) -> str:
    """Return the agents' token: from a file, from SAFEMARGIN_TOKEN, or created beside the log.

    Kept beside the log, it stays valid when the server restarts.
    """
    if given is None and (text := os.environ.get("SAFEMARGIN_TOKEN")):
        return _checked(text.strip(), "SAFEMARGIN_TOKEN")
    return _read(given) if given is not None else _stored(log.with_name(log.name + "-token"))


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


def find_page_token(log: Path) -> str:
    """Return people's token, created once beside the log so that addresses survive a restart."""
    return _stored(log.with_name(log.name + "-page-token"))


def _stored(path: Path) -> str:
    """Return the token in a file that only its owner can read; create it if needed."""
    if not path.exists():
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidInput(f"a token cannot be stored in {path}: {error.strerror}") from error
        with os.fdopen(handle, "w") as file:
            file.write(new_token() + "\n")
    return _read(path)


def _read(path: Path) -> str:
    try:
        return _checked(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the token cannot be read from {path}: {error}") from error


def _checked(token: str, where: str) -> str:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidInput(
            f"{where} must hold a token of at least {SHORTEST_TOKEN} plain characters, got "
            f"{len(token)}"
        )
    return token


def _same(given: str, known: str) -> bool:
    return secrets.compare_digest(given.encode(), known.encode())
