"""Plain values: what JSON can hold."""

from __future__ import annotations

import math
from typing import Any


def finite_or_none(value: float) -> float | None:
    """Return the number, or None (null in JSON) where it is NaN or infinite."""
    return value if math.isfinite(value) else None


def plain_values(value: Any) -> Any:
    """Return nested lists and dictionaries with None for every number that is NaN or infinite."""
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, dict):
        return {name: plain_values(item) for name, item in value.items()}
    return [plain_values(item) for item in value] if isinstance(value, list | tuple) else value
