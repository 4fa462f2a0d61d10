"""Selects the step of each episode to measure: natural or spread (Algorithm 2, appendix A)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Episode, Floats, Moment
from safemargin.core.seeding import Purpose, stream
from safemargin.core.settings import Settings
from safemargin.errors import PolicyFault


def eligible_steps(*, opening: int, steps: int, cut: bool, settings: Settings) -> range:
    """Return the steps of an episode that may be selected: after the opening, before the last few.

    If the episode was cut, only steps whose whole horizon was seen.
    """
    last = steps - settings.excluded_steps
    if cut:
        last = min(last, steps - settings.horizon)
    return range(opening, max(last, opening))


def _eligible(episode: Episode, settings: Settings) -> range:
    return eligible_steps(
        opening=episode.opening, steps=episode.steps, cut=episode.cut, settings=settings
    )


def select_natural(episode: Episode, settings: Settings) -> Moment:
    """Draw a step uniformly from the eligible ones."""
    steps = _eligible(episode, settings)
    generator = stream(settings.seed, Purpose.SELECTION, *episode.key.stream_keys)
    return Moment(episode.key, steps[int(generator.integers(len(steps)))])


def select_spread(
    episodes: Iterable[Episode], proxy: str, settings: Settings
) -> Iterator[tuple[Moment, Episode]]:
    """Select, for each episode in turn, the step whose proxy is farthest from all before.

    Ties are broken uniformly at random; the first episode is treated as in the natural phase.
    """
    selected: list[float] = []
    for episode in episodes:
        steps = _eligible(episode, settings)
        values = selection_values(episode, proxy)[steps.start : steps.stop]
        if selected:
            distances = _distance_to_nearest(values, selected)
            farthest = np.flatnonzero(distances == distances.max())
            generator = stream(settings.seed, Purpose.SELECTION, *episode.key.stream_keys)
            position = int(farthest[generator.integers(len(farthest))])
            moment = Moment(episode.key, steps[position])
        else:
            moment = select_natural(episode, settings)
        insort(selected, float(values[moment.step - steps.start]))
        yield moment, episode


def selection_values(episode: Episode, proxy: str) -> Floats:
    """Return the proxy at each step, [steps]; if it looks at n, its value for the smallest n."""
    values = episode.proxies[proxy]
    if not np.isfinite(values).all():
        raise PolicyFault(f"proxy {proxy!r} is not finite everywhere in episode {episode.key}")
    return values if values.ndim == 1 else np.asarray(values[:, 0])


def _distance_to_nearest(values: Floats, selected: list[float]) -> npt.NDArray[np.float64]:
    known = np.asarray(selected)  # sorted
    right = np.searchsorted(known, values)
    above = known[np.minimum(right, len(known) - 1)]
    below = known[np.maximum(right - 1, 0)]
    return np.asarray(np.minimum(np.abs(values - below), np.abs(values - above)))
