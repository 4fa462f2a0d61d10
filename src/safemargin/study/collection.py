"""Collecting a study (Algorithm 2) in three passes: episodes, selection, criticality.

Episodes and criticality run in parallel; the selection between them is sequential, cheap and
exact, so the result is the same for any number of workers and after any interruption. Asking for
more moments later extends a study; it never changes what is in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from safemargin.core.progress import Progress
from safemargin.core.records import PHASES, EpisodeKey, Moment, Phase
from safemargin.core.settings import Settings
from safemargin.engines import Engine, EpisodeTask, MomentTask
from safemargin.errors import StudyIncomplete
from safemargin.study.plays import FewPlays, count_plays, told_plays
from safemargin.study.selection import eligible_steps, select_natural, select_spread
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
    """Go on until the store holds so many natural and spread moments, fully measured."""
    wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
    chosen = _run_episodes(store, engine, settings, wanted, progress)
    _select(store, settings, selection_proxy, chosen)
    few_plays = told_plays(count_plays(store), len(store.moments()))
    if few_plays:  # now, before hours are spent on them
        warnings.warn(few_plays, FewPlays, stacklevel=3)
    _measure(store, engine, settings, chosen, progress)


class Episodes:
    """The finished episodes of one phase, game by game: which of them have a step to select."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.games: dict[int, dict[EpisodeKey, bool]] = {}
        self.cut = 0

    def add(self, key: EpisodeKey, opening: int, steps: int, cut: bool) -> None:
        """Take note of an episode; all lives of a game are added before anything is asked."""
        steps_left = eligible_steps(opening=opening, steps=steps, cut=cut, settings=self.settings)
        self.games.setdefault(key.index, {})[key] = bool(steps_left)
        self.cut += cut

    @property
    def eligible(self) -> int:
        """How many there are in all, gaps between the games or not."""
        return sum(sum(lives.values()) for lives in self.games.values())

    def first(self, count: int) -> list[EpisodeKey]:
        """The first eligible ones of the games without gaps from number 0."""
        keys: list[EpisodeKey] = []
        number = 0
        while len(keys) < count and number in self.games:
            keys += [key for key, usable in sorted(self.games[number].items()) if usable]
            number += 1
        return keys[:count]

    def missing(self, count: int) -> Iterator[int]:
        """Games to run until there are enough, one eligible life expected of each in flight."""
        number = handed_out = 0
        known = len(self.games)
        while self.eligible + handed_out - (len(self.games) - known) < count:
            if number not in self.games:
                handed_out += 1
                yield number
            number += 1

    def refuse_short_ones(self) -> None:
        """StudyIncomplete where hardly any episode is long enough to choose a step from."""
        tried = sum(len(lives) for lives in self.games.values())
        if tried < 50 or self.eligible >= tried * 0.02:
            return
        if self.cut > tried / 2:
            raise StudyIncomplete(
                f"{self.cut} of {tried} episodes did not end within max_episode_steps "
                f"({self.settings.max_episode_steps}), which leaves no step with a whole horizon "
                f"({self.settings.horizon} steps) after it; raise max_episode_steps"
            )
        raise StudyIncomplete(
            f"{tried - self.eligible} of {tried} episodes have no step to select: they are not "
            f"longer than the opening (up to {self.settings.opening}) and the last "
            f"{self.settings.excluded_steps} steps, which are left out; use smaller n or a "
            "smaller exclude_last"
        )


def _run_episodes(
    store: Store,
    engine: Engine,
    settings: Settings,
    wanted: dict[Phase, int],
    progress: Progress,
) -> dict[Phase, list[EpisodeKey]]:
    """Pass 1: for each phase the first so many episodes, by game and life, with a step to select.

    Several workers, or games with several lives, may run a game or two more than it takes. Those
    are dropped again, so that what a study holds does not depend on the workers.
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
            tasks = (
                EpisodeTask(EpisodeKey(phase, number)) for number in episodes.missing(wanted[phase])
            )
            for piece in engine.run(tasks):
                if isinstance(piece.result, tuple):
                    raise TypeError("an episode task gave a measurement")
                store.add_episodes(piece.result, seconds=piece.seconds)
                for episode in piece.result:
                    episodes.add(episode.key, episode.opening, episode.steps, episode.cut)
                progress.advance(sum(episode.steps for episode in piece.result))
                episodes.refuse_short_ones()
        chosen[phase] = keys
        used = [moment.episode for moment in store.moments() if moment.episode.phase == phase]
        store.drop_games(phase, after=max([key.index for key in keys + used], default=-1))
    return chosen


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
    tasks = (
        MomentTask(
            store.episode(moment.episode),
            moment,
            left,
            tuple(
                store.actions(replace(moment.episode, life=life))
                for life in range(moment.episode.life)
            ),
        )
        for moment, left in todo
    )
    for piece in engine.run(tasks):
        if isinstance(piece.result, list):
            raise TypeError("a moment task gave episodes")
        moment, measurement = piece.result
        store.add_measurement(moment, measurement, seconds=piece.seconds)
        progress.advance(measurement.steps)


def _interleave(moments: list[Moment]) -> Iterator[Moment]:
    """Natural and spread in turn, so that a study cut short holds both."""
    by_phase = [[moment for moment in moments if moment.episode.phase == p] for p in PHASES]
    for pair in zip_longest(*by_phase):
        yield from (moment for moment in pair if moment is not None)
