"""What the finished pieces of a study cost, whether read from its database or just measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from safemargin.core.records import Episode, EpisodeKey, Measurement
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import ALWAYS_REPEATED
from safemargin.study.blobs import pack
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


def cost_of_episode(episode: Episode, seconds: float, settings: Settings) -> Cost:
    """Return the cost of an episode that was just run."""
    arrays = (episode.actions, episode.rewards, episode.scores)
    blobs = [sum(len(pack(array)) for array in arrays)]
    blobs += [len(pack(values)) for values in episode.proxies.values()]
    small = 2 + len(episode.proxies)  # the rows of its costs, its moment and the moment's proxies
    return Cost(
        episode.steps,
        seconds,
        stored=sum(map(_bytes_of_row, blobs)) + small * _bytes_of_row(0),
        moments=_usable(episode.opening, episode.steps, episode.cut, settings),
    )


def cost_of_measurement(measurement: Measurement, seconds: float) -> Cost:
    """Return the cost of a moment that was just measured for one n."""
    blobs = len(pack(measurement.perturbed)) + len(pack(measurement.unperturbed))
    return Cost(
        measurement.steps,
        seconds,
        trials=measurement.estimate.trials,
        capped=measurement.estimate.capped,
        stored=_bytes_of_row(blobs) + _bytes_of_row(0),
    )


def read_costs(store: Store, settings: Settings) -> dict[Piece, Cost]:
    """Return the cost of every finished piece of a study."""
    usable = {key: _usable(*outline, settings) for key, outline in store.episode_outlines().items()}
    stored: dict[Piece, float] = {}
    for key, n, size in store.row_sizes():
        stored[key, n] = stored.get((key, n), 0.0) + _bytes_of_row(size)
    return {
        (row.key, row.n): Cost(
            row.steps,
            row.seconds,
            trials=row.trials,
            capped=row.capped,
            stored=stored[row.key, row.n],
            moments=usable[row.key] if row.n == 0 else 0,
        )
        for row in store.costs()
    }


def whole_moments(pieces: Iterable[Piece], n_values: Sequence[int]) -> set[EpisodeKey]:
    """Return the episodes whose moments are measured for every n."""
    measured: dict[EpisodeKey, int] = {}
    for key, n in pieces:
        measured[key] = measured.get(key, 0) + (n > 0)
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


def _usable(opening: int, steps: int, cut: bool, settings: Settings) -> int:
    return int(bool(eligible_steps(opening=opening, steps=steps, cut=cut, settings=settings)))


def _bytes_of_row(blobs: int) -> float:
    """Estimate the size of a row in SQLite's 4-kB pages; a long row has pages of its own."""
    size = blobs + 30  # the key and the plain columns
    return 1.3 * size if size <= 1000 else 500 + 4096 * math.ceil((size - 1000) / 4092)
