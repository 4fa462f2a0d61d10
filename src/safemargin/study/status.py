"""What is in a study, what is left to do, and how long that may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.records import PHASES
from safemargin.core.settings import Settings
from safemargin.study.plays import count_plays
from safemargin.study.store import Store


@dataclass(frozen=True, slots=True)
class Status:
    """What is in a study and what is left to do."""

    wanted: Mapping[str, int]
    """Phase → moments asked for by the last `collect`."""
    episodes: int
    """All that were run, those too short to choose a step from included."""
    chosen_moments: int
    """One for each episode with a step to choose."""
    distinct_moments: int
    """At which the proxies differ; the others are, as good as surely, the same state again."""
    distinct_episodes: int
    """Among those of the chosen moments; the others are copies after their opening."""
    plays: int
    """That these episodes come to: such as begin differently may meet and go on as one."""
    moments: Mapping[str, int]
    """Phase → moments measured for every n."""
    estimates: int
    estimates_left: int
    trials: int
    without_spread: int
    """Sampled estimates whose trials all lost the same: a rare loss may have been missed."""
    capped: int
    """Estimates that reached `max_trials` before they were precise enough."""
    simulator_steps: int
    wasted_steps: int
    """Those of them in trials that were begun ahead and then not wanted."""
    remembered_states: int
    """The most that were held for one moment, to see where its rollouts meet."""
    worker_seconds: float
    seconds_left: float | None
    """With the workers of the last `collect`; None where nothing is known yet."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def study_status(store: Store, settings: Settings) -> Status:
    """What is in the study, what is left, and how long that may take."""
    target = store.meta("target") or {"natural": 0, "spread": 0, "workers": 1}
    per_moment = len(settings.n_values)
    totals = store.totals()
    measured = store.measured_moments(per_moment)
    wanted: dict[str, int] = {phase: target[phase] for phase in PHASES}
    return Status(
        wanted=wanted,
        plays=count_plays(store),
        moments={phase: measured.get(phase, 0) for phase in PHASES},
        estimates_left=max(sum(wanted.values()) * per_moment - totals["estimates"], 0),
        seconds_left=_seconds_left(store, settings, wanted, totals["episodes"], target["workers"]),
        **totals,
    )


def _seconds_left(
    store: Store, settings: Settings, wanted: Mapping[str, int], episodes: int, workers: int
) -> float | None:
    """From the mean cost of an episode and of a measurement for each n."""
    seconds: dict[int, list[float]] = {}
    for row in store.costs():
        seconds.setdefault(row.n, []).append(row.seconds)
    costs = {n: (len(each), float(np.mean(each))) for n, each in seconds.items()}
    moments = sum(wanted.values())
    left = max(moments - episodes, 0) * costs.get(0, (0, 0.0))[1]
    means = [mean for n, (_, mean) in costs.items() if n > 0]
    for n in settings.n_values:
        count, mean = costs.get(n, (0, float(np.mean(means)) if means else None))
        if count < moments and mean is None:
            return None
        left += max(moments - count, 0) * (mean or 0.0)
    return float(left / workers)
