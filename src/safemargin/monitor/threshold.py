"""A threshold that is exceeded as often as wanted, whatever the values look like.

Each agent's time is cut into slots as long as a call. A slot's largest value is one that could have
been a call, so the k-th largest of all slots in a window of time is the level that would have been
exceeded k times. Only the order of values matters: a shift or another scale changes nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

Urgency = tuple[float, float, float]
"""What is compared: how low the margin is, then the proxy, then a lot."""

LOWEST: Urgency = (-math.inf, -math.inf, 0.0)
HIGHEST: Urgency = (math.inf, math.inf, 1.0)

LONG, SHORT = 20.0, 4.0
"""A window holds the time in which this many calls are expected."""
WARM_UP = 0.5
"""Before this many calls are expected, too little is known for a threshold …"""
LONGEST_WARM_UP = 120.0
"""… and for no more than this many seconds."""


class Window:
    """The largest values of recent slots, in order."""

    def __init__(self, calls: float) -> None:
        """`calls`: how many calls are expected in the window."""
        self._calls = calls
        self._by_time: deque[tuple[float, Urgency]] = deque()
        self._by_size: list[Urgency] = []

    def __len__(self) -> int:
        return len(self._by_size)

    def add(self, now: float, peak: Urgency) -> None:
        """Add the largest value of a slot that ends now."""
        self._by_time.append((now, peak))
        insort(self._by_size, peak)

    def level(self, now: float, rate: float, eagerness: float) -> Urgency:
        """Return the level that would have been exceeded `eagerness` times too often.

        `rate`: wanted calls a second. `now`: seconds since the first slot began.
        """
        span = self._calls / rate
        while self._by_time and self._by_time[0][0] < now - span:
            _, old = self._by_time.popleft()
            del self._by_size[bisect_left(self._by_size, old)]
        if now < min(WARM_UP / rate, LONGEST_WARM_UP):
            return HIGHEST
        wanted = max(1, round(eagerness * rate * min(span, now)))
        if wanted > len(self._by_size):
            return LOWEST
        return self._by_size[-wanted]


class Threshold:
    """A long window finds the level well, a short one follows a change quickly.

    While the budget is spent as wanted, the long one decides. The short one is followed where the
    budget piles up, if its level is lower, and where it is nearly spent, if its level is higher.
    """

    def __init__(self) -> None:
        self.level = HIGHEST
        self._long, self._short = Window(LONG), Window(SHORT)

    def add(self, now: float, peak: Urgency) -> None:
        """Add the largest value of a slot that ends now."""
        self._long.add(now, peak)
        self._short.add(now, peak)

    def adapt(self, now: float, rate: float, saved: float) -> None:
        """Set the level for `rate` calls a second; `saved`: how full the bank is, from 0 to 1."""
        eagerness = 4.0 ** (2 * saved - 1)  # ¼ with an empty bank, 4 with a full one
        self.level = self._long.level(now, rate, eagerness)
        short = self._short.level(now, rate, eagerness)
        if saved > 0.75:
            self.level = min(self.level, short)
        elif saved < 0.25:
            self.level = max(self.level, short)
