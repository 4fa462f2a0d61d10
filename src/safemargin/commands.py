"""What the commands share: exit statuses, lists of numbers as options, answers as JSON."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

OK, FINDING, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

AddCommand = Callable[[str, str, str], argparse.ArgumentParser]
"""Name, purpose and description → the command's parser."""


def numbers(text: str) -> list[float]:
    """An option such as 0.5,1."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be numbers with commas, like 0.5,1"
        ) from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """An option such as 1,2,4,8."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be whole numbers with commas, like 1,2,4,8"
        ) from None


def _plain(value: Any) -> Any:
    """Infinity is no JSON number: it is told as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    print(json.dumps(_plain(value), indent=2, allow_nan=False))
