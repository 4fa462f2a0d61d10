"""The recorded episodes of a study, by name: what explorer, report and highlights show."""

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
from safemargin.replay.summaries import Glance, Outline
from safemargin.study.study import Study

_NAME = re.compile(r"(natural|spread|seed)-(\d+)(?:-(\d+))?")
_TYPED = re.compile(
    r"(?:(natural|spread|seed)[\s:.-]+)?(\d{1,18})"
    r"(?:[\s:.-]+(?P<from_0>\d{1,18})|,?\s+life\s+(?P<from_1>\d{1,18}))?"
)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One episode and what it takes to play it again."""

    name: str
    episode: Episode
    earlier_lives: tuple[Array, ...]
    """The actions of the lives before the episode's own, in the same game."""


class Recordings:
    """All episodes of a study, and those that were run from a seed beside it.

    Safe to use from several threads.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self._lock = threading.RLock()
        self._fresh: dict[str, Recording] = {}
        self._outlines: list[Outline] | None = None
        self._last: Recording | None = None
        self._glance: Glance | None = None

    def outlines(self) -> list[Outline]:
        """Every episode with a step to look at, in the order of the study; fresh ones first."""
        with self._lock:
            if self._outlines is None or self._glance is None:
                self._glance = Glance(self.study)
                self._outlines = list(self._stored_outlines(self._glance))
            glance = self._glance
            fresh = [self._fresh_outline(each, glance) for each in self._fresh.values()]
            return fresh + self._outlines

    @property
    def has_lives(self) -> bool:
        """Whether the environment ends an episode with each life of a game."""
        return any(outline.life for outline in self.outlines())

    def open(self, name: str) -> Recording:
        """The recording of that name; InvalidInput where there is none."""
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
        """A recording's name for people: 'natural 17', or 'natural 17, life 2' of a game."""
        phase, index, life = name.split("-")
        return episode_title(phase, int(index), int(life), has_lives=self.has_lives)

    def find(self, text: str) -> str:
        """The name behind what a person typed: '17', 'spread 3', 'natural 17, life 2' or its id.

        A number alone is that of a natural episode; without a life, it is the first in the list.
        """
        if match := _TYPED.fullmatch(text.strip()):
            wanted = match[1] or "natural", int(match[2])
            life = None
            if number := match["from_0"]:
                life = int(number)
            elif number := match["from_1"]:
                life = int(number) - 1
            for outline in self.outlines():
                if (outline.phase, outline.index) == wanted and life in (None, outline.life):
                    return outline.name
        games = {phase: self._numbers(phase) for phase in get_args(Phase)}
        told = ", ".join(
            f"{phase} 0 to {max(numbers)}" for phase, numbers in games.items() if numbers
        )
        raise InvalidInput(
            f"the study in {self.study.path} has no episode {text!r:.60}; "
            + (
                f"it has {told}: ask for a number (of the natural ones), 'spread 3', or a name "
                "such as natural-17-0"
                if told
                else "it has none yet, run `safemargin collect`"
            )
        )

    def run_seed(self, seed: int) -> str:
        """Run the episodes of a game from an environment seed; returns the first one's name.

        They are looked at with the study's margins, but never become part of it.
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
        """The step of an episode that the study chose; None where it chose none."""
        return next((each.moment_step for each in self.outlines() if each.name == name), None)

    def measured(self, name: str) -> list[Measurement]:
        """What the study measured at its moment of an episode, by increasing n."""
        with self._lock:
            if name in self._fresh:
                return []
            return self.study.store.measurements(self._key(name))

    # -- inside --------------------------------------------------------------------------------

    def _key(self, name: str) -> EpisodeKey:
        match = _NAME.fullmatch(name)
        known = {outline.name for outline in self.outlines()}
        if match is None or name not in known:
            raise InvalidInput(f"there is no episode {name!r} in the study {self.study.path}")
        phase: Any = match[1]
        return EpisodeKey(phase, int(match[2]), int(match[3] or 0))

    def _numbers(self, phase: str) -> list[int]:
        return [outline.index for outline in self.outlines() if outline.phase == phase]

    def _stored_outlines(self, glance: Glance) -> Iterable[Outline]:
        for trace in self.study.store.proxy_traces(self.study.default_proxy):
            if trace.steps <= trace.opening:
                continue
            key, values, opening = trace.key, trace.values, trace.opening
            peak = glance.peak(values, opening)
            yield Outline(
                name=key.id,
                phase=key.phase,
                index=key.index,
                life=key.life,
                seed=trace.seed,
                opening=opening,
                steps=trace.steps,
                total_reward=trace.total_reward,
                ended=trace.ended,
                fingerprint=trace.fingerprint,
                eligible=glance.eligible(trace.steps, opening),
                eligible_steps=peak.steps,
                steps_above=peak.above,
                peak_step=peak.step,
                peak_proxy=peak.proxy,
                same_peak=glance.same_peak(key.id, peak, values),
                moment_step=trace.moment_step,
                joins=glance.plays.joins(key.id, values, opening, trace.fingerprint),
            )

    def _fresh_outline(self, recording: Recording, glance: Glance) -> Outline:
        episode = recording.episode
        opening = min(episode.opening, episode.steps - 1)
        peak = glance.peak(episode.proxies[self.study.default_proxy], opening)
        return Outline(
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
            eligible=glance.eligible(episode.steps, episode.opening),
            eligible_steps=peak.steps,
            steps_above=peak.above,
            peak_step=peak.step,
            peak_proxy=peak.proxy,
            same_peak=None,
            moment_step=None,
            joins=None,
        )
