"""The three passes of Algorithm 2, as both a collection and a pilot run them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from safemargin.core.records import (
    Array,
    Episode,
    EpisodeFeatures,
    EpisodeKey,
    Measurement,
    Moment,
    MomentFeatures,
)
from safemargin.core.settings import Settings
from safemargin.engines import Engine, EpisodeTask, FeaturesTask, MomentTask, Piece
from safemargin.errors import DiagnosisWrong, StudyIncomplete
from safemargin.study.reading import StoreReader
from safemargin.study.selection import eligible_steps, select_natural, select_spread

Item = TypeVar("Item")


@dataclass(eq=False)
class Episodes:
    """The finished episodes of one phase, game by game, and which of them have a step to select."""

    settings: Settings
    games: dict[int, dict[EpisodeKey, bool]] = field(default_factory=dict)
    tried: int = 0
    """The number of episodes in all games."""
    eligible: int = 0
    """How many of them have a step to select."""
    cut: int = 0

    def add(self, key: EpisodeKey, opening: int, steps: int, cut: bool) -> None:
        """Record an episode; add all lives of a game before asking anything."""
        steps_left = eligible_steps(opening=opening, steps=steps, cut=cut, settings=self.settings)
        self.games.setdefault(key.index, {})[key] = bool(steps_left)
        self.tried += 1
        self.eligible += bool(steps_left)
        self.cut += cut

    def add_game(self, game: Iterable[Episode]) -> None:
        """Record all episodes of a game that was just run."""
        for episode in game:
            self.add(episode.key, episode.opening, episode.steps, episode.cut)

    def eligible_in(self, numbers: Iterable[int]) -> list[EpisodeKey]:
        """Return the eligible episodes of these games, in this order."""
        return [
            key
            for number in numbers
            for key, usable in sorted(self.games[number].items())
            if usable
        ]

    def first(self, count: int) -> list[EpisodeKey]:
        """Return the first eligible ones of the games that are known without gaps from number 0."""
        known = itertools.takewhile(self.games.__contains__, itertools.count())
        return self.eligible_in(known)[:count]

    def missing(self, count: int) -> Iterator[int]:
        """Yield games to run until there are enough, expecting one eligible life of each."""
        number = handed_out = 0
        known = len(self.games)
        while self.eligible + handed_out - (len(self.games) - known) < count:
            if number not in self.games:
                handed_out += 1
                yield number
            number += 1

    def refuse_short_ones(self) -> None:
        """Raise StudyIncomplete if hardly any episode is long enough to select a step from."""
        tried = self.tried
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


def run_games(
    engine: Engine, games: Iterable[EpisodeKey]
) -> Iterator[list[tuple[list[Episode], float]]]:
    """Pass 1: run games; yield those that finish together.

    Each comes as its episodes and the seconds that a worker took.
    """
    for pieces in _together(engine.run(map(EpisodeTask, games))):
        found = []
        for piece in pieces:
            if not isinstance(piece.result, list):
                raise TypeError("an episode task gave a measurement")
            found.append((piece.result, piece.seconds))
        yield found


def _together(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield lists of pieces that are there at the same time, also if an error follows them."""
    waiting: list[Piece] = []
    try:
        for piece in pieces:
            waiting.append(piece)
            if not piece.followed:
                ready, waiting = waiting, []
                yield ready
    except (Exception, KeyboardInterrupt):
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def select_moments(
    natural: Iterable[Episode], spread: Iterable[Episode], proxy: str, settings: Settings
) -> Iterator[tuple[Moment, Episode]]:
    """Pass 2: select one moment of each episode.

    The spread choice depends on all moments before it, so it always starts from the first episode.
    """
    for episode in natural:
        yield select_natural(episode, settings), episode
    yield from select_spread(spread, proxy, settings)


Pair = tuple[str, str]
"""A perturbation and a signal, as written."""


def measure_moments(
    engine: Engine,
    store: StoreReader,
    todo: Iterable[tuple[Moment, tuple[int, ...]]],
) -> Iterator[tuple[Moment, Measurement, float]]:
    """Measure moments, each for its n; yield each measurement and its worker seconds."""
    asked = ((moment, n_values, ()) for moment, n_values in todo)
    for measured in measure_pairs(engine, store, asked):
        for moment, _, measurement, seconds in measured:
            yield moment, measurement, seconds


def measure_pairs(
    engine: Engine,
    store: StoreReader,
    todo: Iterable[tuple[Moment, tuple[int, ...], tuple[Pair, ...]]],
    *,
    keep_features: Callable[[MomentFeatures], object] = lambda features: None,
) -> Iterator[list[tuple[Moment, Pair | None, Measurement, float]]]:
    """Pass 3: measure moments, each for its n and for signals that share the trials.

    Yield measurements that finish together, what each is about (None: the job's own) and its worker
    seconds.
    DiagnosisWrong if a moment shows it. No further one is started then, but those before it are
    finished: the error raised is that of the first such moment, however many workers there are.
    """
    started: list[Moment] = []
    wrong: dict[Moment, DiagnosisWrong] = {}

    def tasks() -> Iterator[MomentTask]:
        for moment, n_values, about in todo:
            if wrong:
                return
            started.append(moment)
            episode = moment.episode
            earlier = earlier_lives(store, episode)
            yield MomentTask(store.episode(episode), moment, n_values, earlier, about)

    for pieces in _together(engine.run(tasks())):
        measured = []
        for piece in pieces:
            if isinstance(piece.result, list | EpisodeFeatures):
                raise TypeError("a moment task gave episodes")
            if isinstance(piece.result, MomentFeatures):
                keep_features(piece.result)
                continue
            moment, found = piece.result
            if isinstance(found, DiagnosisWrong):
                wrong[moment] = found
            else:
                measured.append((moment, piece.about, found, piece.seconds))
        yield measured
    if wrong:
        raise next(wrong[moment] for moment in started if moment in wrong)


def look_at_moments(
    engine: Engine, store: StoreReader, moments: Iterable[Moment]
) -> Iterator[MomentFeatures]:
    """Go to moments once more, and yield the policy's hidden layer there."""
    return _features(engine, store, ((one.episode, one) for one in moments), MomentFeatures)


def look_at_episodes(
    engine: Engine, store: StoreReader, keys: Iterable[EpisodeKey]
) -> Iterator[EpisodeFeatures]:
    """Replay whole episodes, and yield the policy's hidden layer at every step of each."""
    return _features(engine, store, ((key, None) for key in keys), EpisodeFeatures)


def _features(
    engine: Engine,
    store: StoreReader,
    wanted: Iterable[tuple[EpisodeKey, Moment | None]],
    kind: type[Item],
) -> Iterator[Item]:
    tasks = (
        FeaturesTask(store.episode(key), moment, earlier_lives(store, key))
        for key, moment in wanted
    )
    for piece in engine.run(tasks):
        if not isinstance(piece.result, kind):
            raise TypeError("a features task gave something else")
        yield piece.result


def earlier_lives(store: StoreReader, key: EpisodeKey) -> tuple[Array, ...]:
    """Return the actions of the lives before an episode, in the same game."""
    return tuple(store.actions(replace(key, life=life)) for life in range(key.life))


def in_turn(*groups: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of several groups in turn; the longer ones continue alone."""
    for items in itertools.zip_longest(*groups):
        yield from (item for item in items if item is not None)
