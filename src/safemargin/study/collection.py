"""Collecting a study (Algorithm 2) in three passes: episodes, selection, criticality.

Episodes and criticality run in parallel; the selection between them is sequential, cheap and
exact, so the result is the same for any number of workers and after any interruption. Asking for
more moments later extends a study; it never changes what is in it.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any

from safemargin.core.progress import Expecting, Progress
from safemargin.core.records import PHASES, EpisodeKey, Moment, Phase
from safemargin.criticality.one_moment import DiagnosisCorrected
from safemargin.engines import Engine
from safemargin.environments.doctor.diagnosis import corrected
from safemargin.errors import DiagnosisWrong, InvalidInput
from safemargin.study.forecast import NOTHING, seconds_left
from safemargin.study.passes import (
    Episodes,
    Pair,
    in_turn,
    measure_pairs,
    run_games,
    select_moments,
)
from safemargin.study.plays import FewPlays, count_plays, describe_plays
from safemargin.study.provenance import keep_proof
from safemargin.study.store import Store

FORECASTS = 12
"""After each of this many first moments, the time left is forecast as in a plan, which knows that
they are checked more thoroughly and that moments cost different amounts."""


def collect(
    stores: Sequence[Store],
    open_engine: Callable[[], AbstractContextManager[Engine]],
    *,
    natural: int,
    spread: int,
    progress: Progress,
) -> None:
    """Collect until a study holds this many natural and spread moments, fully measured.

    `stores` are its databases about the mistakes and losses to measure at each moment. If episodes
    or trials show that the study's diagnosis is wrong, it is corrected, all estimates are dropped,
    and they are measured again by a new engine with the corrected diagnosis.
    """
    wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
    store = stores[0]
    while True:
        try:
            with open_engine() as engine:
                keep_proof(store, engine.proof())
                for each in stores:
                    each.set_meta("target", {**wanted, "workers": engine.workers})
                _collect(stores, engine, wanted, progress)
            return
        except DiagnosisWrong as wrong:
            diagnosis = corrected(store.meta("diagnosis"), wrong)
            store.correct_diagnosis(diagnosis)
            text = diagnosis["findings"][-1]["text"]
            warnings.warn(f"the study in {store.folder}: {text}", DiagnosisCorrected, stacklevel=3)


def _collect(
    stores: Sequence[Store], engine: Engine, wanted: dict[Phase, int], progress: Progress
) -> None:
    """Go through the three passes; DiagnosisWrong if they show it.

    What there is by then, and so the error, does not depend on the engine.
    """
    store = stores[0]
    chosen = _run_episodes(store, engine, wanted, progress)
    kept = store.episode_outlines()
    refuse_draws((key for key in store.drew() if key in kept), store.meta("diagnosis"))
    episodes = {phase: map(store.episode, keys) for phase, keys in chosen.items()}
    proxy, settings = store.meta("selection_proxy"), store.settings()
    store.add_moments(select_moments(episodes["natural"], episodes["spread"], proxy, settings))
    few_plays = describe_plays(count_plays(store), len(store.moments()))
    if few_plays:  # now, before hours are spent on them
        warnings.warn(few_plays, FewPlays, stacklevel=4)
    _measure(stores, engine, chosen, progress, wanted)


def check_collect(natural: int, spread: int, workers: int | None) -> None:
    """Refuse numbers that no collection can have."""
    if natural < 0 or spread < 0 or natural + spread == 0:
        raise InvalidInput(
            f"natural and spread must be at least 0 and not both 0, got {natural} and {spread}"
        )
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")


def _run_episodes(
    store: Store, engine: Engine, wanted: dict[Phase, int], progress: Progress
) -> dict[Phase, list[EpisodeKey]]:
    """Return the first `wanted` episodes of each phase that have a step to select.

    Several workers, or games with several lives, may run a few games too many. Those are dropped
    again, so that what a study holds does not depend on the workers.
    """
    settings = store.settings()
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
            for finished in run_games(engine, games):
                with store.together():
                    for game, seconds in finished:
                        store.add_episodes(game, seconds=seconds)
                for game, _ in finished:
                    episodes.add_game(game)
                    progress.advance(sum(episode.steps for episode in game))
                    episodes.refuse_short_ones()
        chosen[phase] = keys
        used = [moment.episode for moment in store.moments() if moment.episode.phase == phase]
        store.drop_games(phase, after=max([key.index for key in keys + used], default=-1))
    return chosen


def refuse_draws(drew: Iterable[EpisodeKey], diagnosis: Mapping[str, Any]) -> None:
    """Raise DiagnosisWrong if any episodes drew random numbers, and that is news."""
    first = min(drew, default=None)
    if first is not None and diagnosis["environment_deterministic"]:
        raise DiagnosisWrong(
            f"in episode {first} the environment drew random numbers under the policy, although "
            "it was found to be deterministic",
            "it has to be measured as random",
            environment_deterministic=False,
        )


def _measure(
    stores: Sequence[Store],
    engine: Engine,
    chosen: dict[Phase, list[EpisodeKey]],
    progress: Progress,
    wanted: Mapping[Phase, int],
) -> None:
    """Measure the criticality of every chosen moment for every n, mistake and loss."""
    store, by_pair = stores[0], {_pair(store): store for store in stores}
    keys = {key for phase in PHASES for key in chosen[phase]}
    moments = [moment for moment in store.moments() if moment.episode in keys]
    n_values = store.settings().n_values
    finished = {pair: of.estimated() for pair, of in by_pair.items()}
    todo: list[tuple[Moment, tuple[int, ...], tuple[Pair, ...]]] = []
    # Natural and spread moments in turn, so that a study cut short holds both.
    for moment in in_turn(*([one for one in moments if one.episode.phase == p] for p in PHASES)):
        todo += _left(moment, n_values, finished)
    total = len(moments) * len(n_values) * len(stores)
    left = sum(len(its_n) * len(pairs) for _, its_n, pairs in todo)
    progress.stage("criticality", total=total, done=total - left)
    if len(stores) == 1:
        todo = [(moment, its_n, ()) for moment, its_n, _ in todo]
    of_moment = len(n_values) * len(stores)
    number = forecasts = 0
    for found in measure_pairs(engine, store, todo, keep_features=store.add_features):
        for pair, group in itertools.groupby(found, key=operator.itemgetter(1)):
            of_pair = by_pair[pair or _pair(store)]
            with of_pair.together():
                for moment, _, measurement, seconds in group:
                    of_pair.add_measurement(moment, measurement, seconds=seconds)
        for _, _, measurement, _ in found:
            progress.advance(measurement.steps)
        number += len(found)
        if forecasts < min(number // of_moment, FORECASTS):
            forecasts = number // of_moment
            _forecast(stores, wanted, engine.workers, progress)


def _forecast(
    stores: Sequence[Store], wanted: Mapping[Phase, int], workers: int, progress: Progress
) -> None:
    """Report how long the rest will take, as far as the moments measured so far tell."""
    if not isinstance(progress, Expecting):
        return
    parts = [seconds_left(store, store.settings(), wanted, workers) for store in stores]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        left = sum(known, NOTHING)
        progress.expect(left.expected, left.low, left.high)


def _pair(store: Store) -> Pair:
    settings = store.settings()
    return settings.perturb, settings.signal


def _left(
    moment: Moment, n_values: Sequence[int], finished: Mapping[Pair, Set[tuple[EpisodeKey, int]]]
) -> Iterator[tuple[Moment, tuple[int, ...], tuple[Pair, ...]]]:
    """Yield what is left to measure at a moment; signals that lack the same n share the trials."""
    together: dict[tuple[str, tuple[int, ...]], list[Pair]] = {}
    for pair, done in finished.items():
        left = tuple(n for n in n_values if (moment.episode, n) not in done)
        if left:
            together.setdefault((pair[0], left), []).append(pair)
    for (_, left), pairs in together.items():
        yield moment, left, tuple(pairs)
