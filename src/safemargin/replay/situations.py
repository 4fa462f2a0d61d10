"""Distinguishes moments, so that a few chosen ones do not all show the same situation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats

ALIKE_STEPS = 10
"""Moments this many steps apart can be alike."""

ALIKE_SHARE = 0.2
"""Moments are alike within this share of the spread of all proxies, and of the largest loss."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What distinguishes one moment from another."""

    time: int
    """Steps since the random opening."""
    proxy: float
    loss: float | None
    """None where nothing was measured; it then distinguishes nothing."""
    scores: bytes
    """The policy's scores; equal ones mean that the agent sees the same, at any time."""


class Situations:
    """The situations chosen so far."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._chosen: list[Situation] = []

    def note(self, proxies: Floats) -> None:
        """Widen the spread of proxies by those of an episode."""
        if len(proxies):
            self._low = min(self._low, float(proxies.min()))
            self._high = max(self._high, float(proxies.max()))

    def is_new(self, found: Situation) -> bool:
        """Return whether none chosen so far is alike; if so, it is chosen."""
        if any(self._alike(found, other) for other in self._chosen):
            return False
        self._chosen.append(found)
        return True

    def _alike(self, one: Situation, other: Situation) -> bool:
        if one.scores == other.scores:
            return True
        if abs(one.time - other.time) > ALIKE_STEPS:
            return False
        if abs(one.proxy - other.proxy) > ALIKE_SHARE * (self._high - self._low):
            return False
        if one.loss is None or other.loss is None:
            return True
        losses = [abs(each.loss) for each in self._chosen if each.loss is not None]
        return abs(one.loss - other.loss) <= ALIKE_SHARE * max(losses)
