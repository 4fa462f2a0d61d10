"""What the finished pieces of a study, or of a pilot, cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from safemargin.core.records import EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import ALWAYS_REPEATED
from safemargin.study.selection import eligible_steps
from safemargin.study.store import Store

ENOUGH = 4
"""With this many other moments, those known to be unusual are left out of a forecast."""

Piece = tuple[EpisodeKey, int]
"""An episode and n; n = 0 is the episode itself."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one finished piece cost."""

    steps: int
    """Simulator steps."""
    seconds: float
    """Seconds of one worker; NaN where the clock cannot be trusted."""
    trials: int = 0
    capped: bool = False
    stored: float = 0.0
    """Bytes on disk."""
    moments: int = 0
    """Moments that an episode gives: 1 if it has a step to select, else 0."""


def read_costs(store: Store, settings: Settings) -> dict[Piece, Cost]:
    """Return the cost of every finished piece of a study."""
    usable = {
        key: bool(eligible_steps(opening=opening, steps=steps, cut=cut, settings=settings))
        for key, (opening, steps, cut) in store.episode_outlines().items()
    }
    stored: defaultdict[Piece, float] = defaultdict(float)
    for key, n, size in store.row_sizes():
        stored[key, n] += _bytes_of_row(size)
    return {
        piece: Cost(*cost, stored[piece], moments=usable[piece[0]] if piece[1] == 0 else 0)
        for piece, cost in store.costs()
    }


def whole_moments(pieces: Iterable[Piece], n_values: Sequence[int]) -> set[EpisodeKey]:
    """Return the episodes whose moments are measured for every n."""
    measured = Counter(key for key, n in pieces if n > 0)
    return {key for key, count in measured.items() if count == len(n_values)}


def usual(costs: Mapping[Piece, Cost]) -> dict[Piece, Cost]:
    """Leave out the first moments of a study, which are checked more thoroughly and cost more."""
    return {piece: cost for piece, cost in costs.items() if piece[0].index >= ALWAYS_REPEATED}


def representative(
    done: Mapping[Piece, Cost],
    n_values: Sequence[int],
    *,
    pilot: Mapping[Piece, Cost] = MappingProxyType({}),
) -> dict[Piece, Cost]:
    """Return the costs to forecast from: the usual ones where there are enough, else all."""
    chosen = {**usual(done), **pilot}
    return chosen if len(whole_moments(chosen, n_values)) >= ENOUGH else {**done, **pilot}


def without_clock(costs: Mapping[Piece, Cost], keys: Set[EpisodeKey]) -> dict[Piece, Cost]:
    """Return the costs with the seconds of these episodes and their moments set to NaN."""
    return {
        piece: replace(cost, seconds=math.nan) if piece[0] in keys else cost
        for piece, cost in costs.items()
    }


def _bytes_of_row(blobs: int) -> float:
    """Return the likely size of a row in SQLite's 4-kB pages; a long row has pages of its own."""
    size = blobs + 30  # the key and the plain columns
    return 1.3 * size if size <= 1000 else 500 + 4096 * math.ceil((size - 1000) / 4092)
