"""Numbers and names for people to read."""

from __future__ import annotations

import unicodedata


def duration(seconds: float) -> str:
    """Format a span of time with a suitable unit: '45 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things: '1 episode', '2,000 episodes', '3 entries'."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def readable(name: str) -> str:
    """Spell out a proxy's name: log_prob_range → log-probability range."""
    full = {"q": "Q", "prob": "probability", "log-prob": "log-probability"}
    words = name.replace("log_prob", "log-prob").replace("_", " ").split(" ")
    return " ".join(full.get(word, word) for word in words)


def printable(text: str) -> str:
    """Return the text as one line that is safe to print, with unprintable characters escaped.

    Some texts come from agents or from files of others; none may pass for a line of our own.
    """
    return "".join(
        each
        if each.isprintable()
        else " "
        if unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in text
    )
