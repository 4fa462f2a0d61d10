"""The recorded episodes of a study by name, for explorer, report and highlights."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from safemargin.core.records import PHASES, Array, Episode, EpisodeKey, Measurement, episode_id
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput
from safemargin.replay.summaries import EpisodeSummary, SummaryMaker
from safemargin.study.passes import earlier_lives
from safemargin.study.reading import ProxyTrace
from safemargin.study.regrets import RegretReader
from safemargin.study.study import Study

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
        self._read = lru_cache(maxsize=1)(self._read_stored)

    def summaries(self) -> list[EpisodeSummary]:
        """Summarise every episode with a step to look at: fresh ones, then in the study's order."""
        with self._lock:
            fresh = [
                self._maker.summary(self._trace(recording.episode), phase="seed")
                for recording in self._fresh.values()
            ]
            return fresh + self._stored

    def summary(self, name: str) -> EpisodeSummary:
        """Return the summary of one episode; InvalidInput where there is none."""
        for summary in self.summaries():
            if summary.name == name:
                return summary
        raise InvalidInput(f"there is no episode {name!r} in the study {self.study.path}")

    @property
    def has_lives(self) -> bool:
        """Whether the environment ends an episode with each life of a game."""
        return any(summary.life for summary in self.summaries())

    def open(self, name: str) -> Recording:
        """Return the recording of that name; InvalidInput where there is none."""
        with self._lock:
            return self._fresh.get(name) or self._read(name)

    def title(self, name: str) -> str:
        """Return a recording's name for people: 'natural 17', or 'natural 17, life 2' of a game."""
        return self.summary(name).title(has_lives=self.has_lives)

    def find(self, text: str) -> str:
        """Return the name for what a person typed: '17', 'spread 3', 'natural 17, life 2' or an id.

        A number alone means a natural episode; without a life, the first one in the list.
        """
        if match := _TYPED.fullmatch(text.strip()):
            wanted = match[1] or "natural", int(match[2])
            from_0, from_1 = match["from_0"], match["from_1"]
            life = int(from_0) if from_0 else int(from_1) - 1 if from_1 else None
            for summary in self.summaries():
                if (summary.phase, summary.index) == wanted and life in (None, summary.life):
                    return summary.name
        last = {each.phase: each.index for each in self.summaries()}
        known = ", ".join(f"{phase} 0 to {last[phase]}" for phase in PHASES if phase in last)
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
        with closing(make_simulator(job.environment.make(), way=job.way)) as simulator:
            runner = Runner(simulator, job.policy, job.settings, job.proxies)
            game = runner.run_game(key, seed=seed)
        with self._lock:
            for life, episode in enumerate(game):
                name = episode_id("seed", seed, life)
                earlier = tuple(before.actions for before in game[:life])
                self._fresh[name] = Recording(name, episode, earlier)
        return episode_id("seed", seed, 0)

    def moment(self, name: str) -> int | None:
        """Return the step of an episode that the study chose; None where it chose none."""
        return self.summary(name).moment_step

    def measured(self, name: str) -> list[Measurement]:
        """Return what the study measured at its moment of an episode, by increasing n."""
        with self._lock:
            if name in self._fresh:
                return []
            return self.study.store.measurements(self._key(name))

    def regret(self, name: str) -> dict[str, Any] | None:
        """Return regret and stakes of one action at its moment; None where they are not known."""
        for measured in self.measured(name):
            step = self.moment(name)
            if measured.estimate.n == 1 and step is not None:
                found = RegretReader(self.study.store).of(self._key(name), step, measured)
                return None if found is None else asdict(found) | {"stakes": found.stakes}
        return None

    # -- inside --------------------------------------------------------------------------------

    def _read_stored(self, name: str) -> Recording:
        key, store = self._key(name), self.study.store
        return Recording(name, store.episode(key), earlier_lives(store, key))

    def _key(self, name: str) -> EpisodeKey:
        summary = self.summary(name)
        phase: Any = summary.phase
        return EpisodeKey(phase, summary.index, summary.life)

    @cached_property
    def _maker(self) -> SummaryMaker:
        return SummaryMaker(self.study)

    @cached_property
    def _stored(self) -> list[EpisodeSummary]:
        traces = self.study.store.proxy_traces(self.study.default_proxy)
        return [self._maker.summary(trace) for trace in traces if trace.steps > trace.opening]

    def _trace(self, episode: Episode) -> ProxyTrace:
        return ProxyTrace(
            key=episode.key,
            seed=episode.seed,
            opening=episode.opening,
            steps=episode.steps,
            total_reward=float(episode.rewards.sum()),
            ended=episode.ended,
            fingerprint=episode.fingerprint,
            values=episode.proxies[self.study.default_proxy],
            moment_step=None,
        )
