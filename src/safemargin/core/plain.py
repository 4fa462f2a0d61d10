"""Plain values: what JSON can hold."""

from __future__ import annotations

import math


def finite_or_none(value: float) -> float | None:
    """Return the number, or None (null in JSON) where it is NaN or infinite."""
    return value if math.isfinite(value) else None
