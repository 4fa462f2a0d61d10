"""Collecting a study (Algorithm 2) in three passes: episodes, selection, criticality.

Episodes and criticality run in parallel; the selection between them is sequential, cheap and
exact, so the result is the same for any number of workers and after any interruption. Asking for
more moments later extends a study; it never changes what is in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import zip_longest

from safemargin.core.progress import Progress
from safemargin.core.records import PHASES, EpisodeKey, Moment, Phase
from safemargin.core.settings import Settings
from safemargin.engines import Engine
from safemargin.errors import InvalidInput
from safemargin.study.passes import Episodes, measure_moments, run_games, select_moments
from safemargin.study.plays import FewPlays, count_plays, describe_plays
from safemargin.study.store import Store


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
    """Collect until the store holds this many natural and spread moments, fully measured."""
    wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
    chosen = _run_episodes(store, engine, settings, wanted, progress)
    episodes = {phase: map(store.episode, keys) for phase, keys in chosen.items()}
    store.add_moments(
        select_moments(episodes["natural"], episodes["spread"], selection_proxy, settings)
    )
    few_plays = describe_plays(count_plays(store), len(store.moments()))
    if few_plays:  # now, before hours are spent on them
        warnings.warn(few_plays, FewPlays, stacklevel=3)
    _measure(store, engine, settings, chosen, progress)


def check_collect(natural: int, spread: int, workers: int | None) -> None:
    """Refuse numbers that no collection can have."""
    if natural < 0 or spread < 0 or natural + spread == 0:
        raise InvalidInput(
            f"natural and spread must be at least 0 and not both 0, got {natural} and {spread}"
        )
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")


def _run_episodes(
    store: Store,
    engine: Engine,
    settings: Settings,
    wanted: dict[Phase, int],
    progress: Progress,
) -> dict[Phase, list[EpisodeKey]]:
    """Return the first `wanted` episodes of each phase that have a step to select.

    Several workers, or games with several lives, may run a few games too many. Those are dropped
    again, so that what a study holds does not depend on the workers.
    """
    phases = {phase: Episodes(settings) for phase in PHASES}
    for key, outline in store.episode_outlines().items():
        phases[key.phase].add(key, *outline)
    total = sum(wanted.values())
    chosen: dict[Phase, list[EpisodeKey]] = {}
    for phase, episodes in phases.items():
        while len(keys := episodes.first(wanted[phase])) < wanted[phase]:
            before = sum(map(len, chosen.values()))
            progress.stage("episodes", total=total, done=before + len(keys))
            games = (EpisodeKey(phase, number) for number in episodes.missing(wanted[phase]))
            for game, seconds in run_games(engine, games):
                store.add_episodes(game, seconds=seconds)
                episodes.add_game(game)
                progress.advance(sum(episode.steps for episode in game))
                episodes.refuse_short_ones()
        chosen[phase] = keys
        used = [moment.episode for moment in store.moments() if moment.episode.phase == phase]
        store.drop_games(phase, after=max([key.index for key in keys + used], default=-1))
    return chosen


def _measure(
    store: Store,
    engine: Engine,
    settings: Settings,
    chosen: dict[Phase, list[EpisodeKey]],
    progress: Progress,
) -> None:
    """Measure the criticality of every chosen moment for every n."""
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
    for moment, measurement, seconds in measure_moments(
        engine,
        todo,
        episode_of=store.episode,
        actions_of=store.actions,
        keep_features=store.add_features,
    ):
        store.add_measurement(moment, measurement, seconds=seconds)
        progress.advance(measurement.steps)


def _interleave(moments: list[Moment]) -> Iterator[Moment]:
    """Yield natural and spread moments in turn, so that a study cut short holds both."""
    by_phase = [[moment for moment in moments if moment.episode.phase == p] for p in PHASES]
    for pair in zip_longest(*by_phase):
        yield from (moment for moment in pair if moment is not None)
