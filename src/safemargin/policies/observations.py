"""Batches of observations: arrays, or for Dict and Tuple spaces the same structure of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Observations = npt.NDArray[Any] | dict[str, Any] | tuple[Any, ...]
"""A batch: an array [batch, ...], or for Dict and Tuple spaces one such array per part."""


def for_each(observations: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to a batch; for Dict and Tuple spaces, to each of its arrays."""
    if isinstance(observations, dict):
        return {name: for_each(part, change) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(for_each(part, change) for part in observations)
    return change(observations)


def batch_of(observations: Sequence[Any]) -> Observations:
    """Copy observations into a batch."""
    first = observations[0]
    if isinstance(first, dict):
        return {name: batch_of([each[name] for each in observations]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(batch_of, zip(*observations, strict=True)))
    return np.stack(observations)


def arrays_of(observations: Any) -> list[Any]:
    """Return the arrays of a batch, in their order."""
    found: list[Any] = []
    for_each(observations, found.append)
    return found
