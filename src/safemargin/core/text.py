"""Numbers and names as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A span of time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
