"""One line about each episode: where it is most critical, and whose play it runs into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.records import Floats, episode_title
from safemargin.errors import StudyIncomplete
from safemargin.margins.bounds.sample import FEWEST_MOMENTS
from safemargin.policies.proxies import single_values
from safemargin.study.plays import ALIKE, Plays
from safemargin.study.study import Study


@dataclass(frozen=True, slots=True)
class Outline:
    """One line about an episode."""

    name: str
    phase: str
    """'natural', 'spread', or 'seed' for one that is not part of the study."""
    index: int
    life: int
    seed: int
    opening: int
    steps: int
    total_reward: float
    ended: str
    fingerprint: str
    eligible: bool
    """Whether it has steps that a study may choose: after the opening, not among the last ones."""
    eligible_steps: int
    """How many; all after the opening where the study may choose none."""
    steps_above: int
    """Those of them whose proxy lies above every measured one: nothing is promised there."""
    peak_step: int
    """Where the study's proxy is highest among the others; among all if there are no others."""
    peak_proxy: float
    same_peak: str | None
    """The earlier episode with the very same peak: one moment that both came to."""
    moment_step: int | None
    """The step that the study chose to measure."""
    joins: str | None
    """The earlier episode whose play this one runs into; None where there is none."""

    @property
    def beyond(self) -> bool:
        """Whether even its peak lies above every measured proxy."""
        return self.steps_above == self.eligible_steps

    def title(self, *, has_lives: bool) -> str:
        """Return the episode's name for people."""
        return episode_title(self.phase, self.index, self.life, has_lives=has_lives)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Peak:
    """What the proxies of an episode say at a glance."""

    step: int
    proxy: float
    steps: int
    above: int


class Glance:
    """Looks over the proxies of one episode after another, in the order of the study."""

    def __init__(self, study: Study) -> None:
        self.highest = highest_measured(study)
        self._excluded = study.settings.excluded_steps
        self.plays = Plays()
        self._peaks: dict[bytes, str] = {}

    def peak(self, values: Floats, opening: int) -> Peak:
        """Where a proxy is highest among the steps that may be chosen and lie in its range."""
        single = single_values(values)
        last = len(single) - self._excluded
        steps = np.arange(opening, last if last > opening else len(single))
        within = steps[single[steps] <= self.highest]
        among = within if len(within) else steps
        step = int(among[np.argmax(single[among])])
        return Peak(step, float(single[step]), len(steps), len(steps) - len(within))

    def eligible(self, steps: int, opening: int) -> bool:
        """Whether a study may choose one of the steps."""
        return steps - self._excluded > opening

    def same_peak(self, name: str, peak: Peak, values: Floats) -> str | None:
        """The first episode that was seen with the same proxies from its peak on."""
        sign = values[peak.step : peak.step + ALIKE].tobytes()
        first = self._peaks.setdefault(sign, name)
        return None if first == name else first


def highest_measured(study: Study) -> float:
    """The highest proxy that a fit knows; infinity where there is too little for a fit."""
    try:
        proxies = study.tuples().proxies
    except StudyIncomplete:
        return float("inf")
    return float("inf") if len(proxies) < FEWEST_MOMENTS else float(single_values(proxies).max())


def told_above(outlines: Sequence[Outline]) -> str | None:
    """How many steps lie above every measured proxy; None where none does."""
    above = sum(outline.steps_above for outline in outlines)
    steps = sum(outline.eligible_steps for outline in outlines)
    if not above:
        return None
    return (
        f"{above:,} of {steps:,} steps lie above every measured proxy, so nothing is promised "
        "there; they come after all others"
    )
