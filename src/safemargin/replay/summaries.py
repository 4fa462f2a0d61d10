"""A summary of each episode: where it is most critical, and which earlier play it joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import episode_id, episode_title
from safemargin.errors import StudyIncomplete
from safemargin.margins.bounds.sample import FEWEST_MOMENTS
from safemargin.policies.proxies import single_values
from safemargin.study.plays import ALIKE, Plays
from safemargin.study.reading import ProxyTrace
from safemargin.study.study import Study


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One episode in a line of a list."""

    name: str
    phase: str
    """'natural', 'spread', or 'seed' for an episode that is not part of the study."""
    index: int
    life: int
    seed: int
    opening: int
    steps: int
    total_reward: float
    ended: str
    eligible: bool
    """Whether it has steps that a study may choose: after the opening, before the last ones."""
    eligible_steps: int
    """Number of such steps; all after the opening where the study may choose none."""
    steps_above: int
    """How many of them have a proxy above every measured one: nothing is promised there."""
    peak_step: int
    """The step with the highest proxy among the others; among all if there are no others."""
    peak_proxy: float
    same_peak: str | None
    """The earlier episode with exactly the same peak: a moment that both reached."""
    moment_step: int | None
    """The step that the study chose to measure."""
    joins: str | None
    """The earlier episode whose play this one joins; None where there is none."""

    @property
    def beyond(self) -> bool:
        """Whether even its peak lies above every measured proxy."""
        return self.steps_above == self.eligible_steps

    def title(self, *, has_lives: bool) -> str:
        """Return the episode's name for people."""
        return episode_title(self.phase, self.index, self.life, has_lives=has_lives)


class SummaryMaker:
    """Summarises one episode after another, in the order of the study."""

    def __init__(self, study: Study) -> None:
        self._highest = highest_measured(study)
        self._excluded = study.settings.excluded_steps
        self._plays = Plays()
        self._peaks: dict[bytes, str] = {}

    def summary(self, trace: ProxyTrace, phase: str | None = None) -> EpisodeSummary:
        """Summarise an episode; only one of the study (`phase` is None) is compared with others."""
        key, values = trace.key, trace.values
        name = episode_id(phase or key.phase, key.index, key.life)
        single = single_values(values)
        first, last = min(trace.opening, trace.steps - 1), trace.steps - self._excluded
        eligible = np.arange(first, last if last > first else trace.steps)
        within = eligible[single[eligible] <= self._highest]
        among = within if len(within) else eligible
        peak = int(among[np.argmax(single[among])])
        same_peak = joins = None
        if phase is None:
            first_such = self._peaks.setdefault(values[peak : peak + ALIKE].tobytes(), name)
            same_peak = None if first_such == name else first_such
            joins = self._plays.joins(name, values, trace.opening, trace.fingerprint)
        return EpisodeSummary(
            name=name,
            phase=phase or key.phase,
            index=key.index,
            life=key.life,
            seed=trace.seed,
            opening=trace.opening,
            steps=trace.steps,
            total_reward=trace.total_reward,
            ended=trace.ended,
            moment_step=trace.moment_step,
            eligible=last > trace.opening,
            eligible_steps=len(eligible),
            steps_above=len(eligible) - len(within),
            peak_step=peak,
            peak_proxy=float(single[peak]),
            same_peak=same_peak,
            joins=joins,
        )


def highest_measured(study: Study) -> float:
    """Return the highest measured proxy; infinity where there are too few moments for a fit."""
    try:
        proxies = study.tuples().proxies
    except StudyIncomplete:
        return float("inf")
    return float("inf") if len(proxies) < FEWEST_MOMENTS else float(single_values(proxies).max())


def steps_above_note(summaries: Sequence[EpisodeSummary]) -> str | None:
    """Say how many steps lie above every measured proxy; None where none does."""
    above = sum(summary.steps_above for summary in summaries)
    steps = sum(summary.eligible_steps for summary in summaries)
    if not above:
        return None
    return (
        f"{above:,} of {steps:,} steps lie above every measured proxy, so nothing is promised "
        "there; they come after all others"
    )
