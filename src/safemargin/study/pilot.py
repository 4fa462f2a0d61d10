"""A few moments of a study, measured only to see what they cost, and thrown away."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from safemargin.core.progress import Progress
from safemargin.core.records import PHASES, Episode, EpisodeKey, Moment, Phase
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import ALWAYS_REPEATED
from safemargin.engines import Engine, EpisodeTask, MomentTask
from safemargin.study.collection import Episodes
from safemargin.study.forecast import (
    Cost,
    Piece,
    cost_of_episode,
    cost_of_measurement,
    whole_moments,
    without_clock,
)
from safemargin.study.selection import select_natural, select_spread

ENOUGH = 4
"""So many moments may speak for the study alone, without those known to be unusual."""


class Pilot:
    """Runs a few episodes and measures one moment of each, round after round.

    Games are taken from all over the study, and moments are chosen as in a study.
    """

    def __init__(
        self,
        settings: Settings,
        selection_proxy: str,
        wanted: Mapping[Phase, int],
        done: Mapping[Piece, Cost],
        *,
        moments: int,
    ) -> None:
        """`wanted` moments has the study, of which it holds `done`; `moments` shall be known."""
        self.settings = settings
        self.selection_proxy = selection_proxy
        self.costs: dict[Piece, Cost] = {}
        self.episodes: dict[EpisodeKey, Episode] = {}
        self.cold: set[EpisodeKey] = set()
        """Those of the first round, in which workers load and warm up."""
        self.seconds = self.choosing_seconds = 0.0
        self.interrupted = False
        # The first moments of a study are checked more thoroughly than the rest, and so cost more.
        self.done = {
            piece: cost for piece, cost in done.items() if piece[0].index >= ALWAYS_REPEATED
        }
        self.first = {piece: cost for piece, cost in done.items() if piece not in self.done}
        known = [key.phase for key in whole_moments(self.done, settings.n_values)]
        held = [key.phase for key in whole_moments(done, settings.n_values)]
        left = any(wanted[phase] > held.count(phase) for phase in PHASES)
        shares = {phase: moments * wanted[phase] / sum(wanted.values()) for phase in PHASES}
        self.targets = {
            phase: max(min(wanted[phase], max(2, round(shares[phase]))) - known.count(phase), 0)
            if left
            else 0
            for phase in PHASES
        }
        played = {key.game_keys for key, _ in done}
        self.numbers = {
            phase: (
                number
                for number in _all_over(wanted[phase], start=PHASES.index(phase) / 2)
                if EpisodeKey(phase, number).game_keys not in played
            )
            for phase in PHASES
        }
        self.games: list[EpisodeKey] = []  # in the order in which they were handed out
        self.tallies = {phase: Episodes(settings) for phase in PHASES}

    @property
    def todo(self) -> int:
        """How many moments to measure."""
        return sum(self.targets.values())

    @property
    def measured(self) -> set[EpisodeKey]:
        """The episodes whose moments are measured for every n."""
        return whole_moments(self.costs, self.settings.n_values)

    def sample(self) -> dict[Piece, Cost]:
        """All costs, without those known to be unusual where there are enough others."""
        n_values = self.settings.n_values
        costs = {**self.done, **self.costs}
        if len(whole_moments(costs, n_values)) < ENOUGH:
            costs |= self.first
        warm = (piece for piece in costs if piece[0] not in self.cold)
        if len(whole_moments(warm, n_values)) >= ENOUGH:
            costs = without_clock(costs, self.cold)
        return costs

    def run(self, engine: Engine, *, seconds: float, progress: Progress) -> None:
        """Measure until the targets or the time limit; Ctrl-C keeps what is finished, if any."""
        progress.stage("pilot", total=self.todo * len(self.settings.n_values), done=0)
        began = time.monotonic()
        try:
            for counts in self._rounds(engine.workers):
                self._run_episodes(engine, counts)
                self._measure(engine, self._choose(counts), progress)
                self.cold = self.cold or set(self.episodes)
                if time.monotonic() - began > seconds:
                    break
        except KeyboardInterrupt:
            if not whole_moments(self.sample(), self.settings.n_values):
                raise
            self.interrupted = True
        self.seconds = time.monotonic() - began

    def _rounds(self, workers: int) -> Iterator[dict[Phase, int]]:
        """How many moments of each phase there are after each round: one more for each worker."""
        turns = [
            phase
            for pair in itertools.zip_longest(*([phase] * self.targets[phase] for phase in PHASES))
            for phase in pair
            if phase is not None
        ]
        size = max(workers, len(PHASES))
        for end in range(size, len(turns) + size, size):
            yield {phase: turns[:end].count(phase) for phase in PHASES}

    def _usable(self, phase: Phase) -> list[Episode]:
        """The episodes so far that have a step to select, in their order."""
        return [
            episode
            for game in self.games
            if game.phase == phase
            for key, episode in sorted(self.episodes.items())
            if key.game_keys == game.game_keys and self.costs[key, 0].moments
        ]

    def _run_episodes(self, engine: Engine, counts: Mapping[Phase, int]) -> None:
        """Games until each phase has so many episodes with a step to select."""
        while missing := [
            EpisodeKey(phase, next(self.numbers[phase]))
            for phase in PHASES
            for _ in range(counts[phase] - len(self._usable(phase)))
        ]:
            self.games += missing
            for piece in engine.run(map(EpisodeTask, missing)):
                if isinstance(piece.result, tuple):
                    raise TypeError("an episode task gave a measurement")
                for episode in piece.result:
                    share = piece.seconds / len(piece.result)
                    self.costs[episode.key, 0] = cost_of_episode(episode, share, self.settings)
                    self.episodes[episode.key] = episode
                    self.tallies[episode.key.phase].add(
                        episode.key, episode.opening, episode.steps, episode.cut
                    )
            for tally in self.tallies.values():
                tally.refuse_short_ones()

    def _choose(self, counts: Mapping[Phase, int]) -> list[Moment]:
        """One moment of each episode, as a study would."""
        began = time.perf_counter()
        natural, spread = (self._usable(phase)[: counts[phase]] for phase in PHASES)
        chosen = [select_natural(episode, self.settings) for episode in natural]
        selected = select_spread(spread, self.selection_proxy, self.settings)
        chosen += [moment for moment, _ in selected]
        self.choosing_seconds = (time.perf_counter() - began) / len(chosen)
        return [moment for moment in chosen if moment.episode not in self.measured]

    def _measure(self, engine: Engine, moments: Iterable[Moment], progress: Progress) -> None:
        """The criticality of some moments, for every n."""
        tasks = (
            MomentTask(
                self.episodes[moment.episode],
                moment,
                self.settings.n_values,
                tuple(
                    self.episodes[replace(moment.episode, life=life)].actions
                    for life in range(moment.episode.life)
                ),
            )
            for moment in moments
        )
        for piece in engine.run(tasks):
            if isinstance(piece.result, list):
                raise TypeError("a moment task gave episodes")
            moment, measurement = piece.result
            cost = cost_of_measurement(measurement, piece.seconds)
            self.costs[moment.episode, measurement.estimate.n] = cost
            progress.advance(measurement.steps)


def _all_over(count: int, *, start: float) -> Iterator[int]:
    """All numbers below `count`, any first few of them spread evenly; then those that follow.

    Steps of the golden ratio around a circle leave no large gap, however early they stop.
    """
    seen: set[int] = set()
    for turn in itertools.count():
        if len(seen) == count:
            break
        number = int((start + turn * (math.sqrt(5) - 1) / 2) % 1 * count)
        if number not in seen:
            seen.add(number)
            yield number
    yield from itertools.count(count)
