"""Collecting a study (Algorithm 2) in three passes: episodes, selection, criticality.

Episodes and criticality run in parallel; the selection between them is sequential, cheap and
exact, so the result is the same for any number of workers and after any interruption. Asking for
more moments later extends a study; it never changes what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Protocol

from safemargin.engines import Engine, EpisodeTask, MomentTask, Piece
from safemargin.errors import StudyIncomplete
from safemargin.records import PHASES, Episode, EpisodeKey, Moment, Phase
from safemargin.selection import eligible_steps, select_natural, select_spread
from safemargin.settings import Settings
from safemargin.store import Store


class Progress(Protocol):
    """Hears how a collection goes on."""

    def stage(self, name: str, *, total: int, done: int) -> None:
        """A stage begins, or its total has grown."""

    def advance(self, steps: int) -> None:
        """One more piece of the stage is finished, after so many simulator steps."""


class Silence:
    """A progress that nobody looks at."""

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def collect(
    store: Store,
    engine: Engine,
    settings: Settings,
    selection_proxy: str,
    *,
    natural: int,
    spread: int,
    progress: Progress,
) -> None:
    """Go on until the store holds so many natural and spread moments, fully measured."""
    wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
    chosen = _run_episodes(store, engine, settings, wanted, progress)
    _select(store, settings, selection_proxy, chosen)
    _measure(store, engine, settings, chosen, progress)


def _run_episodes(
    store: Store,
    engine: Engine,
    settings: Settings,
    wanted: dict[Phase, int],
    progress: Progress,
) -> dict[Phase, list[EpisodeKey]]:
    """Pass 1: for each phase the first so many episodes, by number, with a step to select."""

    def usable(opening: int, steps: int, cut: bool) -> bool:
        return bool(eligible_steps(opening=opening, steps=steps, cut=cut, settings=settings))

    eligible = {key: usable(*outline) for key, outline in store.episode_outlines().items()}
    while True:
        chosen = {phase: _first_eligible(eligible, phase, wanted[phase]) for phase in PHASES}
        missing = [
            key for phase in PHASES for key in _missing(eligible, phase, wanted[phase], chosen)
        ]
        done = sum(len(keys) for keys in chosen.values())
        progress.stage("episodes", total=done + len(missing), done=done)
        if not missing:
            return chosen
        for piece in engine.run(EpisodeTask(key) for key in missing):
            episode = piece.result
            if not isinstance(episode, Episode):
                raise TypeError(f"an episode task gave {type(episode).__name__}")
            store.add_episode(episode, seconds=piece.seconds)
            eligible[episode.key] = usable(episode.opening, episode.steps, episode.cut)
            progress.advance(episode.steps)
        _refuse_short_episodes(eligible, settings)


def _first_eligible(eligible: dict[EpisodeKey, bool], phase: Phase, count: int) -> list[EpisodeKey]:
    """The first `count` eligible episodes of the run without gaps from number 0."""
    keys: list[EpisodeKey] = []
    number = 0
    while len(keys) < count and (key := EpisodeKey(phase, number)) in eligible:
        if eligible[key]:
            keys.append(key)
        number += 1
    return keys


def _missing(
    eligible: dict[EpisodeKey, bool],
    phase: Phase,
    count: int,
    chosen: dict[Phase, list[EpisodeKey]],
) -> Iterator[EpisodeKey]:
    """The next episodes to run so that, were all of them eligible, there would be enough."""
    lacking = count - len(chosen[phase])
    number = 0
    while lacking > 0:
        key = EpisodeKey(phase, number)
        if key not in eligible:
            yield key
            lacking -= 1
        elif eligible[key] and key not in chosen[phase]:
            lacking -= 1
        number += 1


def _refuse_short_episodes(eligible: dict[EpisodeKey, bool], settings: Settings) -> None:
    tried, usable = len(eligible), sum(eligible.values())
    if tried >= 50 and usable < tried * 0.02:
        raise StudyIncomplete(
            f"{tried - usable} of {tried} episodes have no step to select: they are not longer "
            f"than the opening (up to {settings.opening}) and the last {settings.excluded_steps} "
            "steps, which are left out; use smaller n or a smaller exclude_last"
        )


def _select(
    store: Store, settings: Settings, proxy: str, chosen: dict[Phase, list[EpisodeKey]]
) -> None:
    """Pass 2: one moment for each chosen episode."""
    natural = (
        (select_natural(episode, settings), episode)
        for episode in map(store.episode, chosen["natural"])
    )
    store.add_moments(natural)
    # The spread choice looks at all moments before it, so it always runs from the first one on.
    store.add_moments(select_spread(map(store.episode, chosen["spread"]), proxy, settings))


def _measure(
    store: Store,
    engine: Engine,
    settings: Settings,
    chosen: dict[Phase, list[EpisodeKey]],
    progress: Progress,
) -> None:
    """Pass 3: the criticality of every chosen moment for every n."""
    keys = {key for phase in PHASES for key in chosen[phase]}
    moments = [moment for moment in store.moments() if moment.episode in keys]
    finished = store.estimated()
    todo: list[tuple[Moment, tuple[int, ...]]] = []
    for moment in _interleave(moments):
        left = tuple(n for n in settings.n_values if (moment.episode, n) not in finished)
        if left:
            todo.append((moment, left))
    total = len(moments) * len(settings.n_values)
    progress.stage("criticality", total=total, done=total - sum(len(left) for _, left in todo))
    tasks = (MomentTask(store.episode(moment.episode), moment, left) for moment, left in todo)
    for piece in engine.run(tasks):
        _keep_measurement(store, piece, progress)


def _interleave(moments: list[Moment]) -> Iterator[Moment]:
    """Natural and spread in turn, so that a study cut short holds both."""
    by_phase = [[moment for moment in moments if moment.episode.phase == p] for p in PHASES]
    for pair in zip_longest(*by_phase):
        yield from (moment for moment in pair if moment is not None)


def _keep_measurement(store: Store, piece: Piece, progress: Progress) -> None:
    if isinstance(piece.result, Episode):
        raise TypeError("a moment task gave an episode")
    moment, measurement = piece.result
    store.add_measurement(moment, measurement, seconds=piece.seconds)
    progress.advance(measurement.steps)
