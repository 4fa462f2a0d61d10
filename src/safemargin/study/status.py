"""The status of a study: what it holds, what is left to do, and how long that may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from safemargin.core.measured import parse_perturbation
from safemargin.core.records import PHASES, Phase
from safemargin.core.settings import Settings
from safemargin.study.forecast import NOTHING, seconds_left
from safemargin.study.noise import Noise, measure_noise
from safemargin.study.plays import count_plays
from safemargin.study.rare_losses import count_resting_on_few
from safemargin.study.regrets import RegretSummary, summarise_regret
from safemargin.study.store import Store
from safemargin.study.tuples import read_tuples


@dataclass(frozen=True, slots=True)
class Status:
    """What a study holds and what is left to do."""

    wanted: Mapping[str, int]
    """Phase → moments asked for by the last `collect`."""
    episodes: int
    """All episodes that were run, including those too short to select a step from."""
    chosen_moments: int
    """One for each episode with a step to select."""
    distinct_moments: int
    """Moments with different proxies; the others are almost certainly the same state again."""
    distinct_episodes: int
    """Distinct among those of the chosen moments; the others are copies after their opening."""
    plays: int
    """Distinct plays: episodes that start differently may converge on the same play."""
    moments: Mapping[str, int]
    """Phase → moments measured for every n."""
    estimates: int
    estimates_left: int
    trials: int
    without_spread: int
    """Sampled estimates whose trials all lost the same: a rare loss may have been missed."""
    spread: int
    """Sampled estimates whose trials lost different amounts."""
    resting_on_few: int
    """Those of them whose spread a few trials make (see `rare_losses`)."""
    noise: Noise | None
    """The noise of the trials in a bound on the default proxy; None for too few moments."""
    capped: int
    """Estimates that reached `max_trials` before they were precise enough."""
    simulator_steps: int
    wasted_steps: int
    """Simulator steps spent on speculative trials that were discarded."""
    remembered_states: int
    """The most states kept for one moment, to detect where its rollouts merge."""
    worker_seconds: float
    seconds_left: float | None
    """With the workers of the last `collect`; None until a moment is measured for every n."""
    regret: RegretSummary | None
    """Where the agent itself is wrong, at natural moments; None where that is unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def study_status(store: Store, settings: Settings) -> Status:
    """Count what the study holds and forecast the rest."""
    target = store.meta("target") or {"natural": 0, "spread": 0, "workers": 1}
    per_moment = len(settings.n_values)
    totals = store.totals()
    if parse_perturbation(settings.perturb).kind == "worst":
        totals["without_spread"] = 0  # nothing was sampled
    measured = store.measured_moments(per_moment)
    # A smaller number asked for later takes nothing away.
    wanted: dict[Phase, int] = {
        phase: max(target[phase], measured.get(phase, 0)) for phase in PHASES
    }
    spread, resting_on_few = count_resting_on_few(store)
    left = max(sum(wanted.values()) * per_moment - totals["estimates"], 0)
    expected = seconds_left(store, settings, wanted, target["workers"]) if left else NOTHING
    return Status(
        wanted=dict(wanted.items()),
        plays=count_plays(store),
        spread=spread,
        noise=measure_noise(store, read_tuples(store, settings, store.meta("selection_proxy"))),
        resting_on_few=resting_on_few,
        moments={phase: measured.get(phase, 0) for phase in PHASES},
        estimates_left=left,
        seconds_left=None if expected is None else expected.expected,
        regret=summarise_regret(store),
        **totals,
    )
