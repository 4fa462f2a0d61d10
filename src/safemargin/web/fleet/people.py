"""The people who watch, recognised by a secret in their browser and distinguished by name."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Person:
    """Somebody who watches."""

    identity: str
    name: str
    pages: int = 0
    gone_since: float | None = None
    """When they closed their last page."""


def identity_of(secret: str) -> str:
    """Return a hash of a person's secret: the log can recognise them, nobody can pose as them."""
    return hashlib.sha256(b"safemargin person " + secret.encode()).hexdigest()[:32]


class People:
    """Everybody who has ever opened a page."""

    def __init__(self) -> None:
        self._known: dict[str, Person] = {}
        self._unnamed = 0

    def remember(self, identity: str, name: str) -> Person:
        """Return a person known from before the server started, who may come back."""
        if identity not in self._known:
            person = Person(identity, self._free_name(name), gone_since=time.time())
            self._known[identity] = person
        return self._known[identity]

    def arrive(self, secret: str, name: str | None = None) -> Person:
        """Return the person with this secret, who opens a page."""
        identity = identity_of(secret)
        person = self._known.get(identity)
        if person is None:
            if name is None:
                self._unnamed += 1
                name = f"person {self._unnamed}"
            person = self.remember(identity, name)
        elif name is not None:
            self.rename(person, name)
        person.pages += 1
        person.gone_since = None
        return person

    def depart(self, person: Person) -> None:
        """Note that a person has closed a page."""
        person.pages -= 1
        if person.pages == 0:
            person.gone_since = time.time()

    def present(self) -> list[str]:
        """Return the names of everybody who has a page open, in order."""
        return sorted(each.name for each in self._known.values() if each.pages)

    def named(self, name: str) -> Person | None:
        """Return the person of this name who has a page open."""
        return next(
            (each for each in self._known.values() if each.pages and each.name == name), None
        )

    def rename(self, person: Person, name: str) -> None:
        """Rename a person; a name that somebody else has gets a number."""
        if name != person.name:
            person.name = self._free_name(name, person)

    def _free_name(self, name: str, person: Person | None = None) -> str:
        taken = {each.name for each in self._known.values() if each is not person}
        free, number = name, 2
        while free in taken:
            free, number = f"{name} {number}", number + 1
        return free
