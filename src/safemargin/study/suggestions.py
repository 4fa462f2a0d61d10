"""Ways to make a study cheaper, computed from a forecast of measured costs.

Trials of a moment that reach the same state share what follows, so later ones are cheaper: half of
them take at least half the time, and without one n the others take at least what they take now.
Such figures are shown as "at least".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from safemargin.core.records import PHASES
from safemargin.core.settings import Settings
from safemargin.margins.bounds.conformal import moments_needed
from safemargin.study.forecast import Forecast

WORTHWHILE = 0.9
"""A change that leaves more than this share of the time is not suggested."""


@dataclass(frozen=True, slots=True)
class Saving:
    """One change to the command, and the time the collection would then take."""

    change: str
    """Options as typed on the command line."""
    seconds: float
    """Time to wait instead of the forecast's, with the same workers."""
    at_least: bool
    """Whether it may well take longer."""
    remark: str
    """What is lost by the change, or when it helps."""


def savings(
    plan: Forecast, settings: Settings, *, waiting: Callable[[float], float], resumes: bool
) -> tuple[Saving, ...]:
    """Return the worthwhile changes, the largest saving first.

    `waiting` turns the seconds of one worker into those that a person waits. A study that is
    resumed keeps its settings, so only its size can change.
    """
    found = [] if resumes else [*_fewer_n(plan), *_fewer_trials(plan, settings)]
    found += _fewer_moments(plan)
    most = WORTHWHILE * plan.worker_seconds.expected
    worth = sorted((one for one in found if one.seconds <= most), key=lambda one: one.seconds)
    return tuple(replace(one, seconds=waiting(one.seconds)) for one in worth)


def _fewer_n(plan: Forecast) -> list[Saving]:
    """Drop the n that takes longest, but never the smallest, whose work others would take over."""
    stages = plan.stages[1:]  # without the episodes
    if len(stages) < 2:
        return []
    slowest = max(stages[1:], key=lambda stage: stage.worker_seconds.expected)
    kept = [stage.n for stage in stages if stage is not slowest]
    share = slowest.worker_seconds.expected / max(plan.worker_seconds.expected, 1e-9)
    below = max(n for n in kept if n < slowest.n)
    remark = f"n = {slowest.n} takes {share:.0%} of it; a margin of {slowest.n} would be {below}"
    seconds = plan.worker_seconds.expected - slowest.worker_seconds.expected
    return [Saving(f"--n {','.join(map(str, kept))}", seconds, True, remark)]


def _fewer_trials(plan: Forecast, settings: Settings) -> list[Saving]:
    """Halve the trials of the plan `fixed`; double the sampling error of the others."""
    if settings.trial_plan == "fixed":
        fewer = settings.trials // 2
        if fewer < 2:
            return []
        seconds = _with_trials(plan, lambda trials: min(trials, fewer))
        remark = "half-widths 1.4 times as wide, where sampled"
        return [Saving(f"--trials {fewer}", seconds, True, remark)]
    # A half-width of twice the size takes a quarter of the trials.
    lowest = settings.min_trials
    seconds = _with_trials(plan, lambda trials: min(trials, max(lowest, trials / 4)))
    change = f"--sampling-error {2 * settings.sampling_error:g}"
    return [Saving(change, seconds, True, "criticalities are known half as well")]


def _with_trials(plan: Forecast, fewer: Callable[[float], float]) -> float:
    """Return the seconds of one worker if the mean number of trials were `fewer` of it."""
    seconds = plan.worker_seconds.expected
    for stage in plan.stages[1:]:
        if stage.pieces:
            trials = stage.trials.expected / stage.pieces
            seconds -= stage.worker_seconds.expected * (1 - fewer(trials) / trials)
    return seconds


def _fewer_moments(plan: Forecast) -> list[Saving]:
    """Halve the remaining moments."""
    left = {phase: plan.left[phase] // 2 for phase in PHASES}
    fewer = {phase: plan.wanted[phase] - left[phase] for phase in PHASES}
    if not any(left.values()):
        return []
    share = 1 - sum(left.values()) / sum(plan.left.values())
    levels = [
        level for level in (0.9, 0.95, 0.99, 0.999) if fewer["natural"] >= moments_needed(level, 1)
    ]
    allowed = f"confidence up to {levels[-1]:g}" if levels else "too few for a confidence of 0.9"
    change = f"--natural {fewer['natural']} --spread {fewer['spread']}"
    seconds = plan.worker_seconds.expected * share
    return [Saving(change, seconds, False, f"{allowed}; can be extended later")]
