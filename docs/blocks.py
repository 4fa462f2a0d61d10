"""The code blocks of the documentation, for the tests that run them and the site that uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    "safemargin",
    "pip",
    "pkill",
    "python",
    "make",
    "ray",
    "sqlite3",
    "PYTHONPATH=",
    "SAFEMARGIN_",
)
"""How the first line of a block of commands begins."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    """The page's path in the repository."""
    line: int
    """The line of its first line, from 1."""
    kind: str
    """'python', 'shell' or another language; 'text' for output."""
    text: str

    @property
    def name(self) -> str:
        """What a file is saved as where the block begins with '# NAME.py'."""
        found = re.match(r"# ([\w-]+\.py)\b", self.text)
        return found[1] if found else ""

    def commands(self) -> list[str]:
        """Return the commands of a shell block, without prompts, comments and output."""
        found: list[str] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if found and found[-1].count('"') % 2:  # a quoted text goes on
                found[-1] += " " + line.strip()
            elif command := re.sub(r"(^|\s+)#.*$", "", line).strip():
                found.append(command)
        prompted = [command[2:] for command in found if command.startswith("$ ")]
        return prompted or found


def blocks_of(root: Path, page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; directives of the site, like {toctree}, are none."""
    language: str | None = None
    begin, inside = 0, list[str]()
    for number, line in enumerate((root / page).read_text("utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, begin, inside = line[3:].strip(), number + 1, []
        elif language is not None and line.startswith("```"):
            if not language.startswith("{"):
                text = "\n".join(inside)
                yield Block(page, begin, _kind(language, text), text)
            language = None
        elif language is not None:
            inside.append(line)


def _kind(language: str, text: str) -> str:
    if language:
        return language
    return "shell" if text.removeprefix("$ ").startswith(PROGRAMS) else "text"
