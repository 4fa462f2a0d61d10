"""Do the steps that a ranking calls important matter? What mistakes cost there, and at any step.

The fidelity test of explanations of agents (Guo et al. 2021, Cheng et al. 2023), with the loss that
the study measures: in each episode, a ranking names the n steps in a row whose mean value is
highest, and the loss is measured there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Episode, EpisodeKey, Floats, Moment
from safemargin.core.seeding import Purpose, stream
from safemargin.criticality.stopping import student_quantile
from safemargin.engines import EngineName, check_engine
from safemargin.errors import InvalidInput, StudyIncomplete, did_you_mean
from safemargin.margins.learned.probe import EXPLANATIONS, RANKINGS
from safemargin.study.collection import check_collect
from safemargin.study.grouping import group_labels
from safemargin.study.passes import measure_moments
from safemargin.study.study import Study

LOT = "lot"
"""The ranking that names any step with equal chance."""

BEST = "true criticality (of the steps named)"
"""The ranking that knows the loss at all the steps that the others, and lot, name in an episode."""

BAND = 0.95


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """What one ranking finds."""

    ranking: str
    loss: float
    """The mean loss where this ranking puts the mistakes, over plays."""
    half_width: float | None
    """Student's, over plays; None for a single one."""
    gain: float
    """Its loss less that of lot in the same episode: above 0, it finds what matters."""
    gain_half_width: float | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The fidelity of every ranking, the best first."""

    n: int
    episodes: int
    plays: int
    """Games that are no copies of one another."""
    mistakes: str
    loss: str
    rows: tuple[FidelityRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def measure_fidelity(
    study: Study,
    *,
    n: int | None = None,
    episodes: int = 50,
    proxies: Sequence[str] | None = None,
    engine: EngineName | None = None,
    progress: Progress | None = None,
    **on: Any,
) -> Fidelity:
    """Measure what n mistakes cost where each proxy is highest, in a study's natural episodes.

    `n` is one that the study measures (None: the largest), `episodes` the most to take, `proxies`
    those to rank by (None: all that are recorded along episodes). Nothing is written. `engine` and
    `on`: as in `Study.collect`.
    """
    store, n_values = study.store, study.settings.n_values
    n = n_values[-1] if n is None else n
    if n not in n_values:
        raise InvalidInput(f"the study measures n = {', '.join(map(str, n_values))}, not {n}")
    if episodes < 1:
        raise InvalidInput(f"fidelity takes at least 1 episode, got {episodes}")
    check_collect(episodes, 0, on.get("workers"))
    check_engine(engine, **on)
    natural = [key for key in store.episode_outlines() if key.phase == "natural"]
    names = _rankings(study, proxies)
    chosen: dict[EpisodeKey, dict[str, int]] = {}
    for key in natural:
        windows = _windows(study, store.episode(key), n, names)
        if windows:
            chosen[key] = windows
        if len(chosen) == episodes:
            break
    if not chosen:
        raise StudyIncomplete(
            f"no natural episode of the study in {study.path} has {n} steps in a row to put "
            "mistakes at; collect natural moments, or take a smaller n"
        )
    moments = sorted(
        {Moment(key, step) for key, windows in chosen.items() for step in windows.values()},
        key=lambda moment: (moment.episode, moment.step),
    )
    progress = progress or Silence()
    progress.stage("criticality", total=len(moments), done=0)
    losses: dict[Moment, float] = {}
    with study.open_engine(engine, **on) as workers:
        for moment, found, _ in measure_moments(workers, store, ((one, (n,)) for one in moments)):
            losses[moment] = found.estimate.mean
            progress.advance(found.steps)
    groups = group_labels(store, list(chosen))
    table = {
        name: np.array([losses[Moment(key, steps[name])] for key, steps in chosen.items()])
        for name in next(iter(chosen.values()))
    }
    table[BEST] = np.max(list(table.values()), axis=0)
    rows = [_row(name, values, table[LOT], groups) for name, values in table.items()]
    measured = study.settings.measured
    return Fidelity(
        n=n,
        episodes=len(chosen),
        plays=len(np.unique(groups)),
        mistakes=measured.mistakes,
        loss=measured.loss,
        rows=tuple(sorted(rows, key=lambda row: -row.gain)),
    )


def _rankings(study: Study, proxies: Sequence[str] | None) -> list[str]:
    """Return the proxies to rank by, all of them recorded along every episode."""
    store = study.store
    known = [*study.proxies, *RANKINGS.values(), *EXPLANATIONS.values()]
    traced = [name for name in known if not store.untraced(name)]
    for name in proxies or ():
        if name not in traced:
            raise InvalidInput(
                f"no ranking {name!r} is recorded along the episodes of the study in {study.path}; "
                f"{did_you_mean(name, traced)}"
            )
    return list(proxies or traced)


def _windows(study: Study, episode: Episode, n: int, names: Sequence[str]) -> dict[str, int]:
    """Return where each ranking, and lot, puts n mistakes in an episode; empty if it is too short.

    Of equal means, the first one counts.
    """
    settings = study.settings
    last = episode.steps - n
    if episode.cut:
        last = min(last, episode.steps - settings.horizon)
    starts = range(episode.opening, last + 1)
    if not starts:
        return {}
    found = {}
    for name in names:
        means = _window_means(episode.proxies[name], n, settings.n_values)
        found[name] = starts[int(np.argmax(means[starts.start : starts.stop]))]
    lot = stream(settings.seed, Purpose.FIDELITY, *episode.key.stream_keys)
    return {**found, LOT: starts[int(lot.integers(len(starts)))]}


def _window_means(values: Floats, n: int, n_values: Sequence[int]) -> Floats:
    """Return the mean proxy over the n steps from each one on, [steps − n + 1]."""
    if values.ndim > 1:
        values = values[:, n_values.index(n)]
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, n).mean(axis=1))


def _row(name: str, losses: Floats, lot: Floats, groups: Any) -> FidelityRow:
    """Average over plays, so that copies of one play count once."""

    def over_plays(values: Floats) -> tuple[float, float | None]:
        means = np.array([values[groups == group].mean() for group in np.unique(groups)])
        mean, count = float(means.mean()), len(means)
        if count < 2:
            return mean, None
        width = student_quantile(BAND, count) * float(means.std(ddof=1)) / math.sqrt(count)
        return mean, width

    return FidelityRow(name, *over_plays(losses), *over_plays(losses - lot))
