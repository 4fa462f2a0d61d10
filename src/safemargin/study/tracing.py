"""How margins and criticality developed over training: a cheap study of each checkpoint.

All studies have the same settings and seed, so every checkpoint starts from the same games, and as
many moments. A budget of time is divided by what the planner forecasts for each checkpoint.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.measured import USUAL, Measured
from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput
from safemargin.margins.fitting import NoBound
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.policies.proxies import single_values
from safemargin.study.gating import baseline_of
from safemargin.study.planning import plan_study
from safemargin.study.study import MakeEnvironment, Study
from safemargin.validation.baseline import Baseline
from safemargin.validation.defaults import default_confidence
from safemargin.validation.effects import Values, change_from
from safemargin.validation.heldout import hold_out, typical_tolerances

MOMENTS = 40
"""Natural moments of each checkpoint, where nobody says how many."""

FEWEST_MOMENTS = 20
"""A budget that pays for fewer than this is refused."""

PILOT_MOMENTS = 4
"""Moments of each checkpoint that are measured, and discarded, to divide a budget."""

LEVEL = 0.95


@dataclass(frozen=True)
class Known:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Stage:
    """What a study of one checkpoint found."""

    name: str
    study: str
    """The study's folder."""
    moments: int
    mean_return: Known
    criticality: tuple[Known, ...]  # for each n
    affordable: tuple[Known, ...]  # for each tolerance
    critical: tuple[Known, ...]  # for each tolerance: the share that affords fewer than call_at
    granted: tuple[float, ...]  # for each tolerance: mean margin on moments its fit has not seen
    proxy: str
    proxy_quality: Known
    """Spearman's rank correlation of the proxy with the loss after up to the largest n."""


@dataclass(frozen=True)
class Evolution:
    """All checkpoints, in order."""

    environment: str
    n_values: tuple[int, ...]
    tolerances: tuple[float, ...]
    call_at: int
    confidence: float
    seed: int
    stages: tuple[Stage, ...]
    measured: Measured = USUAL
    """Which mistakes were made, and what they cost."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def trace(
    env: str | MakeEnvironment,
    checkpoints: Sequence[Any],
    folder: str | Path,
    *,
    moments: int | None = None,
    seconds: float | None = None,
    tolerances: Sequence[float] | None = None,
    call_at: int | None = None,
    settings: Settings | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **made_with: Any,
) -> Evolution:
    """Study each checkpoint briefly, in folders within `folder`, and return what developed.

    `checkpoints` are policies, in the order of training. Each gets this many natural `moments`, or
    as many as can be measured in this many `seconds` altogether. Finished studies are used again.
    `made_with`: `env_arguments`, `scores` and `way` of `Study.create`.
    """
    settings, progress = settings or Settings(), progress or Silence()
    if len(checkpoints) < 2:
        given = ", ".join(map(str, checkpoints))
        raise InvalidInput(
            f"a trace needs at least 2 checkpoints, got {len(checkpoints)}: {given}"
            + (", which matches no file" if "*" in given else "")
        )
    if moments is not None and seconds is not None:
        raise InvalidInput("give either the moments of a checkpoint or the seconds for all")
    if moments is not None and moments < FEWEST_MOMENTS:
        raise InvalidInput(f"a trace needs at least {FEWEST_MOMENTS} moments, got {moments}")
    made_with["settings"] = settings
    count = moments or MOMENTS
    if seconds is not None:
        count = moments_within(seconds, env, checkpoints, workers=workers, **made_with)
    names = checkpoint_names(checkpoints)
    found: list[Baseline] = []
    for number, (name, policy) in enumerate(zip(names, checkpoints, strict=True), start=1):
        path = Path(folder) / f"{number:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
        with Study.create(path, env, policy, progress=progress, **made_with) as study:
            study.collect(natural=count, spread=0, workers=workers, progress=progress)
            found.append(baseline_of(study))
    losses = np.concatenate([each.losses for each in found])
    levels = tuple(tolerances or typical_tolerances(losses))
    below = call_at or next((n for n in settings.n_values if n >= 2), settings.n_values[-1])
    confidence = default_confidence(count)
    return Evolution(
        environment=str(found[0].environment["name"]),
        n_values=settings.n_values,
        tolerances=levels,
        call_at=below,
        confidence=confidence,
        seed=settings.seed,
        stages=tuple(
            _stage(name, each, levels, below, confidence)
            for name, each in zip(names, found, strict=True)
        ),
        measured=settings.measured,
    )


def moments_within(
    seconds: float,
    env: str | MakeEnvironment,
    checkpoints: Sequence[Any],
    *,
    workers: int | None = None,
    **made_with: Any,
) -> int:
    """Return how many moments of each checkpoint can be measured in this time, by the planner.

    The same number for all, because they share their starts: it is what is left after preparing
    all studies, divided by the forecast cost of one moment of each.
    """
    plans = [
        plan_study(
            None,
            env,
            policy,
            natural=MOMENTS,
            spread=0,
            moments=PILOT_MOMENTS,
            seconds=max(seconds / 4 / len(checkpoints), 1e-3),
            workers=workers,
            **made_with,
        )
        for policy in checkpoints
    ]
    spent = sum(plan.pilot_seconds + 2 * plan.preparation_seconds for plan in plans)
    each = sum((plan.seconds.expected - plan.preparation_seconds) / MOMENTS for plan in plans)
    count = int((seconds - spent) / max(each, 1e-9))
    if count < FEWEST_MOMENTS:
        needed = spent + each * FEWEST_MOMENTS
        raise InvalidInput(
            f"{seconds:g} seconds suffice for {max(count, 0)} moments of each of the "
            f"{len(checkpoints)} checkpoints, and a trace needs {FEWEST_MOMENTS}; give about "
            f"{needed:.0f} seconds, fewer checkpoints, or a cheaper plan (fewer trials or n)"
        )
    return count


def checkpoint_names(checkpoints: Sequence[Any]) -> list[str]:
    """Return a short name for each checkpoint, only once: of its file or function, or a number."""
    names = [
        Path(str(each).rpartition(".py:")[2]).stem
        if isinstance(each, str | Path)
        else f"checkpoint {number}"
        for number, each in enumerate(checkpoints, start=1)
    ]
    return [
        name if names.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(names, start=1)
    ]


def in_training_order(paths: Sequence[str]) -> list[str]:
    """Order files by the numbers in their names, as a person would: step 900 before step 1000."""

    def parts(path: str) -> list[tuple[int, int, str]]:
        return [
            (0, int(part), "") if part.isdigit() else (1, 0, part)
            for part in re.split(r"(\d+)", path)
            if part
        ]

    return sorted(paths, key=parts)


def _stage(
    name: str, of: Baseline, tolerances: Sequence[float], call_at: int, confidence: float
) -> Stage:
    games, first = of.groups, np.unique(of.games, return_index=True)[1]
    group_of = dict(zip(of.games[first].tolist(), games[first].tolist(), strict=True))
    # A game without a moment is a group by itself, with a label that no other has.
    units = [group_of.get(game, len(games) + game) for game in of.game_numbers.tolist()]
    largest = np.maximum.accumulate(of.losses, axis=1)  # [moments, n]
    sizes = np.array([0, *of.n_values], dtype=np.float64)
    affordable = [sizes[(largest <= each).sum(axis=1)] for each in tolerances]
    with warnings.catch_warnings(action="ignore", category=NoBound):
        held = hold_out(of.sample(), method=DEFAULT_METHOD, confidence=confidence)
    span = float(of.n_values[-1])
    return Stage(
        name=name,
        study=of.source,
        moments=len(of.losses),
        mean_return=_known(of.returns, np.array(units)),
        criticality=tuple(_known(column, games) for column in of.losses.T),
        affordable=tuple(_known(each, games, span) for each in affordable),
        critical=tuple(_known((each < call_at) * 1.0, games, 1.0) for each in affordable),
        granted=tuple(float(held.margins(each).mean()) for each in tolerances),
        proxy=of.proxy,
        proxy_quality=_rank_correlation(single_values(of.proxies), largest[:, -1]),
    )


def _known(values: Floats, games: Any, span: float | None = None) -> Known:
    """Return a mean and its interval, with games as the independent units; `span`: from 0 to it."""
    width = float(np.ptp(values)) if span is None else span
    change = change_from(0.0, Values(values, np.asarray(games, np.int64)), old=0.0, span=width)
    half = change.half_width((1 - LEVEL) / 2)
    low, high = change.new - half, change.new + half
    return Known(change.new, *((low, high) if span is None else (max(low, 0.0), min(high, span))))


def _rank_correlation(one: Floats, other: Floats) -> Known:
    """Return Spearman's correlation with its interval (Fisher's z; Bonett and Wright's error)."""
    from scipy.stats import rankdata  # here: importing a study must not load scipy

    ranks = [rankdata(each) for each in (one, other)]
    if any(np.ptp(each) == 0 for each in ranks):
        return Known(0.0, -1.0, 1.0)  # one of them does not vary: it ranks nothing
    found = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    error = 1.96 * np.sqrt((1 + found**2 / 2) / (len(one) - 3))
    z = np.arctanh(np.clip(found, -0.999999, 0.999999))
    return Known(found, float(np.tanh(z - error)), float(np.tanh(z + error)))
