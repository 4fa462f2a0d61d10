"""A few moments of a study, measured only to learn what they cost, and then discarded."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from safemargin.core.progress import Progress
from safemargin.core.records import PHASES, EpisodeKey, Moment, Phase
from safemargin.engines import Engine
from safemargin.study.costs import (
    ENOUGH,
    Cost,
    Piece,
    read_costs,
    representative,
    usual,
    whole_moments,
    without_clock,
)
from safemargin.study.passes import Episodes, in_turn, measure_moments, run_games, select_moments
from safemargin.study.store import Store


@dataclass(eq=False)
class Pilot:
    """Runs a few episodes and measures one moment of each, round after round.

    Games are taken from all over the study, and moments are selected as in a study.
    """

    scratch: Store
    """An empty study like the one that is planned, for the pilot's own pieces."""
    wanted: Mapping[Phase, int]
    """Phase → the moments that the study is to have."""
    done: Mapping[Piece, Cost]
    """What the study already holds."""
    moments: int
    """The pilot measures until it knows the costs of this many moments."""

    def __post_init__(self) -> None:
        wanted, done = self.wanted, self.done
        self.settings = settings = self.scratch.settings()
        self.cold: set[EpisodeKey] = set()
        """The episodes of the first round, in which workers load and warm up."""
        self.seconds = self.selection_seconds = 0.0
        self.interrupted = False
        known = Counter(key.phase for key in whole_moments(usual(done), settings.n_values))
        held = Counter(key.phase for key in whole_moments(done, settings.n_values))
        self.targets = dict.fromkeys(PHASES, 0)
        if any(wanted[phase] > held[phase] for phase in PHASES):
            for phase in PHASES:
                share = round(self.moments * wanted[phase] / sum(wanted.values()))
                self.targets[phase] = max(min(wanted[phase], max(2, share)) - known[phase], 0)
        played = {key.game_keys for key, _ in done}
        self.numbers = {
            phase: (
                number
                for number in _all_over(wanted[phase], start=PHASES.index(phase) / 2)
                if EpisodeKey(phase, number).game_keys not in played
            )
            for phase in PHASES
        }
        self.games: dict[Phase, list[int]] = {phase: [] for phase in PHASES}
        """The games of each phase, in the order in which they were handed out."""
        self.finished = {phase: Episodes(settings) for phase in PHASES}

    @property
    def todo(self) -> int:
        """How many moments to measure."""
        return sum(self.targets.values())

    @property
    def measured(self) -> set[EpisodeKey]:
        """The episodes whose moments are measured for every n."""
        return whole_moments(self.scratch.estimated(), self.settings.n_values)

    def sample(self) -> dict[Piece, Cost]:
        """Return all costs, without unusual ones where there are enough others."""
        n_values = self.settings.n_values
        pilot = read_costs(self.scratch, self.settings)
        costs = representative(self.done, n_values, pilot=pilot)
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
                self._measure(engine, self._select(counts), progress)
                self.cold = self.cold or set(self.scratch.episode_outlines())
                if time.monotonic() - began > seconds:
                    break
        except KeyboardInterrupt:
            if not whole_moments(self.sample(), self.settings.n_values):
                raise
            self.interrupted = True
        self.seconds = time.monotonic() - began

    def _rounds(self, workers: int) -> Iterator[dict[Phase, int]]:
        """Yield the moments of each phase there are after each round: one more for each worker."""
        turns = list(in_turn(*([phase] * self.targets[phase] for phase in PHASES)))
        size = max(workers, len(PHASES))
        for end in range(size, len(turns) + size, size):
            yield {phase: turns[:end].count(phase) for phase in PHASES}

    def _eligible(self, phase: Phase) -> list[EpisodeKey]:
        return self.finished[phase].eligible_in(self.games[phase])

    def _run_episodes(self, engine: Engine, counts: Mapping[Phase, int]) -> None:
        """Run games until each phase has this many episodes with a step to select."""
        while missing := [
            EpisodeKey(phase, next(self.numbers[phase]))
            for phase in PHASES
            for _ in range(counts[phase] - len(self._eligible(phase)))
        ]:
            for game, seconds in itertools.chain.from_iterable(run_games(engine, missing)):
                self.scratch.add_episodes(game, seconds=seconds)
                self.finished[game[0].key.phase].add_game(game)
            for key in missing:
                self.games[key.phase].append(key.index)
            for episodes in self.finished.values():
                episodes.refuse_short_ones()

    def _select(self, counts: Mapping[Phase, int]) -> list[Moment]:
        """Select one moment of each episode, as a study would; return those not yet measured."""
        began = time.perf_counter()
        natural, spread = (
            map(self.scratch.episode, self._eligible(phase)[: counts[phase]]) for phase in PHASES
        )
        proxy = self.scratch.meta("selection_proxy")
        selected = list(select_moments(natural, spread, proxy, self.settings))
        self.selection_seconds = (time.perf_counter() - began) / len(selected)
        self.scratch.add_moments(selected)
        measured = self.measured
        return [moment for moment, _ in selected if moment.episode not in measured]

    def _measure(self, engine: Engine, moments: list[Moment], progress: Progress) -> None:
        """Measure the criticality of some moments for every n."""
        for moment, measurement, seconds in measure_moments(
            engine, self.scratch, ((moment, self.settings.n_values) for moment in moments)
        ):
            self.scratch.add_measurement(moment, measurement, seconds=seconds)
            progress.advance(measurement.steps)


def _all_over(count: int, *, start: float) -> Iterator[int]:
    """Yield all numbers below `count`, any first few of them spread evenly; then those above.

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
