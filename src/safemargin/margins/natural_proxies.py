"""The distribution of the proxy when margins were fitted: a few order statistics to detect drift.

One decision is drawn from each episode, so that the values are independent however strongly the
steps of an episode depend on one another. Up to 101 values are kept, by rank. Whatever the
distribution, the share of all decisions that lies between two values j ranks apart follows a beta
distribution with mean j / (count + 1); `monitor.drift` relies on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, stream
from safemargin.errors import InvalidInput

MOST_VALUES = 101
MOST_EPISODES = 2**53
"""Floats, which drift is computed with, count no further without gaps."""


@dataclass(frozen=True, eq=False)
class NaturalProxies:
    """Order statistics of the proxy at one random decision of each of `count` episodes."""

    count: int
    """The number of episodes, and so of values."""
    ranks: npt.NDArray[np.int64]  # [kept] from 1 to count, increasing
    values: Floats  # [kept] the value at each rank
    ties: Floats  # [kept] in [0, 1) random numbers that put equal values in order

    def __post_init__(self) -> None:
        for name, kind in (("ranks", np.int64), ("values", np.float64), ("ties", np.float64)):
            array = np.array(getattr(self, name), dtype=kind)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        ranks, values, ties = self.ranks, self.values, self.ties
        if ranks.ndim != 1 or not len(ranks) or not ranks.shape == values.shape == ties.shape:
            raise InvalidInput(
                "natural_proxies needs as many ranks as values and ties, got shapes "
                f"{ranks.shape}, {values.shape}, {ties.shape}"
            )
        if ranks[0] < 1 or ranks[-1] > self.count or not (np.diff(ranks) > 0).all():
            raise InvalidInput(
                f"the ranks of natural_proxies must increase from 1 to at most {self.count}"
            )
        ordered = list(zip(values.tolist(), ties.tolist(), strict=True))
        if not np.isfinite(values).all() or ordered != sorted(ordered):
            raise InvalidInput("the values of natural_proxies must be finite and in order")
        if not ((ties >= 0) & (ties < 1)).all():
            raise InvalidInput("the ties of natural_proxies must lie in [0, 1)")

    def to_dict(self) -> dict[str, Any]:
        """Return the entry 'natural_proxies' of margins.json as plain lists and numbers."""
        return {
            "count": self.count,
            **{name: getattr(self, name).tolist() for name in ("ranks", "values", "ties")},
        }

    @classmethod
    def from_dict(cls, data: Any) -> NaturalProxies:
        """Restore what `to_dict` returned, after checking it."""
        if type(data) is not dict or set(data) != {"count", "ranks", "values", "ties"}:
            raise InvalidInput("natural_proxies must hold count, ranks, values and ties")
        if type(data["count"]) is not int or data["count"] > MOST_EPISODES:
            raise InvalidInput(f"the count of natural_proxies is {data['count']!r:.40}")
        for name, kinds in (("ranks", (int,)), ("values", (int, float)), ("ties", (int, float))):
            if type(data[name]) is not list or any(type(each) not in kinds for each in data[name]):
                raise InvalidInput(f"the {name} of natural_proxies must be a list of numbers")
        return cls(**data)


def summarise(values: npt.ArrayLike, *, seed: int = 0) -> NaturalProxies:
    """Return the order statistics of values that are independent of one another, [values]."""
    drawn = np.asarray(values, dtype=np.float64)
    if drawn.ndim != 1 or not len(drawn) or not np.isfinite(drawn).all():
        raise InvalidInput("natural proxies must be finite numbers, one for each episode")
    ties = stream(seed, Purpose.NATURAL_PROXIES, 1).random(len(drawn))
    order = np.lexsort((ties, drawn))
    ranks = np.unique(np.linspace(1, len(drawn), MOST_VALUES).round().astype(np.int64))
    kept = order[ranks - 1]
    return NaturalProxies(len(drawn), ranks, drawn[kept], ties[kept])


def draw_one_per_episode(
    episodes: Sequence[Floats],  # each [decisions]
    generator: np.random.Generator,
) -> Floats:
    """Return the value at one random decision of each episode, [episodes with decisions]."""
    return np.array(
        [values[int(generator.integers(len(values)))] for values in episodes if len(values)],
        dtype=np.float64,
    )
