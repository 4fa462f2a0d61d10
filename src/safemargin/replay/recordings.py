"""The recorded episodes of a study by name, for explorer, report and highlights."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

from safemargin.core.records import (
    Array,
    Episode,
    EpisodeKey,
    Measurement,
    Phase,
    episode_id,
    episode_title,
)
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput
from safemargin.replay.summaries import EpisodeSummary, SummaryMaker
from safemargin.study.study import Study

_NAME = re.compile(r"(natural|spread|seed)-(\d+)(?:-(\d+))?")
_TYPED = re.compile(
    r"(?:(natural|spread|seed)[\s:.-]+)?(\d{1,18})"
    r"(?:[\s:.-]+(?P<from_0>\d{1,18})|,?\s+life\s+(?P<from_1>\d{1,18}))?"
)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One episode, and the lives before it that a replay must go through."""

    name: str
    episode: Episode
    earlier_lives: tuple[Array, ...]
    """The actions of the lives before the episode's own, in the same game."""


class Recordings:
    """All episodes of a study, and fresh ones run from a seed; safe to use from several threads."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._lock = threading.RLock()
        self._fresh: dict[str, Recording] = {}
        self._summaries: list[EpisodeSummary] | None = None
        self._last: Recording | None = None
        self._maker: SummaryMaker | None = None

    def summaries(self) -> list[EpisodeSummary]:
        """Summarise every episode with a step to look at: fresh ones, then in the study's order."""
        with self._lock:
            if self._summaries is None or self._maker is None:
                self._maker = SummaryMaker(self.study)
                self._summaries = list(self._stored_summaries(self._maker))
            maker = self._maker
            fresh = [self._fresh_summary(each, maker) for each in self._fresh.values()]
            return fresh + self._summaries

    @property
    def has_lives(self) -> bool:
        """Whether the environment ends an episode with each life of a game."""
        return any(summary.life for summary in self.summaries())

    def open(self, name: str) -> Recording:
        """Return the recording of that name; InvalidInput where there is none."""
        with self._lock:
            if name in self._fresh:
                return self._fresh[name]
            if self._last is None or self._last.name != name:
                key = self._key(name)
                lives = [replace(key, life=life) for life in range(key.life)]
                self._last = Recording(
                    name=name,
                    episode=self.study.store.episode(key),
                    earlier_lives=tuple(map(self.study.store.actions, lives)),
                )
            return self._last

    def title(self, name: str) -> str:
        """Return a recording's name for people: 'natural 17', or 'natural 17, life 2' of a game."""
        phase, index, life = name.split("-")
        return episode_title(phase, int(index), int(life), has_lives=self.has_lives)

    def find(self, text: str) -> str:
        """Return the name for what a person typed: '17', 'spread 3', 'natural 17, life 2' or an id.

        A number alone means a natural episode; without a life, the first one in the list.
        """
        if match := _TYPED.fullmatch(text.strip()):
            wanted = match[1] or "natural", int(match[2])
            life = None
            if number := match["from_0"]:
                life = int(number)
            elif number := match["from_1"]:
                life = int(number) - 1
            for summary in self.summaries():
                if (summary.phase, summary.index) == wanted and life in (None, summary.life):
                    return summary.name
        games = {phase: self._numbers(phase) for phase in get_args(Phase)}
        known = ", ".join(
            f"{phase} 0 to {max(numbers)}" for phase, numbers in games.items() if numbers
        )
        hint = "it has none yet, run `safemargin collect`"
        if known:
            hint = (
                f"it has {known}: give a number (of a natural episode), 'spread 3', or a name like "
                "natural-17-0"
            )
        raise InvalidInput(f"the study in {self.study.path} has no episode {text!r:.60}; {hint}")

    def run_seed(self, seed: int) -> str:
        """Run the episodes of a game from an environment seed; return the first one's name.

        They are shown with the study's margins, but never become part of the study.
        """
        job = self.study.job()
        key = EpisodeKey("natural", seed)
        simulator = make_simulator(job.environment.make(), way=job.way)
        try:
            runner = Runner(simulator, job.policy, job.settings, job.proxies)
            game = runner.run_game(key, seed=seed)
        finally:
            simulator.close()
        with self._lock:
            for life, episode in enumerate(game):
                name = episode_id("seed", seed, life)
                earlier = tuple(before.actions for before in game[:life])
                self._fresh[name] = Recording(name, episode, earlier)
        return episode_id("seed", seed, 0)

    def moment(self, name: str) -> int | None:
        """Return the step of an episode that the study chose; None where it chose none."""
        return next((each.moment_step for each in self.summaries() if each.name == name), None)

    def measured(self, name: str) -> list[Measurement]:
        """Return what the study measured at its moment of an episode, by increasing n."""
        with self._lock:
            if name in self._fresh:
                return []
            return self.study.store.measurements(self._key(name))

    # -- inside --------------------------------------------------------------------------------

    def _key(self, name: str) -> EpisodeKey:
        match = _NAME.fullmatch(name)
        known = {summary.name for summary in self.summaries()}
        if match is None or name not in known:
            raise InvalidInput(f"there is no episode {name!r} in the study {self.study.path}")
        phase: Any = match[1]
        return EpisodeKey(phase, int(match[2]), int(match[3] or 0))

    def _numbers(self, phase: str) -> list[int]:
        return [summary.index for summary in self.summaries() if summary.phase == phase]

    def _stored_summaries(self, maker: SummaryMaker) -> Iterable[EpisodeSummary]:
        for trace in self.study.store.proxy_traces(self.study.default_proxy):
            if trace.steps <= trace.opening:
                continue
            key = trace.key
            yield maker.summary(
                trace.values,
                stored=True,
                name=key.id,
                phase=key.phase,
                index=key.index,
                life=key.life,
                seed=trace.seed,
                opening=trace.opening,
                steps=trace.steps,
                total_reward=trace.total_reward,
                ended=trace.ended,
                fingerprint=trace.fingerprint,
                moment_step=trace.moment_step,
            )

    def _fresh_summary(self, recording: Recording, maker: SummaryMaker) -> EpisodeSummary:
        episode = recording.episode
        return maker.summary(
            episode.proxies[self.study.default_proxy],
            stored=False,
            name=recording.name,
            phase="seed",
            index=episode.seed,
            life=episode.key.life,
            seed=episode.seed,
            opening=episode.opening,
            steps=episode.steps,
            total_reward=float(episode.rewards.sum()),
            ended=episode.ended,
            fingerprint=episode.fingerprint,
            moment_step=None,
        )
