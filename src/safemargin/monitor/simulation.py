"""Oversight in hindsight: what a monitor would have done in the episodes of a study.

A study holds the proxy at every step of its episodes. Each episode is judged by margins that were
fitted without it and without similar ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from safemargin.core.records import Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.fitting import NoBound, margins_from_sample
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.monitor.attention import (
    Attention,
    Integers,
    PastEpisode,
    attention_row,
    within_budget,
)
from safemargin.study.blobs import unpack
from safemargin.study.grouping import group_labels
from safemargin.study.store import Store
from safemargin.study.study import Study
from safemargin.validation.heldout import typical_tolerances

FOLDS = 5

Key = tuple[str, int, int]  # phase, episode, life


def simulate_oversight(
    study: Study,
    *,
    budget: float | None = None,
    tolerances: Sequence[float] | None = None,
    within: int = 8,
    rate: float = 15.0,
    agents: int = 1,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    proxy: str | None = None,
    estimand: Estimand = "mean",
) -> Attention:
    """Return what calling at each threshold would have cost and caught in a study's episodes.

    `budget`: the share of decisions that people can attend to. `within`: a call counts up to this
    many decisions before an event. `rate`: decisions per second of one agent. Calls end as a
    monitor ends them by default: at the next measured n above `call_at`.
    """
    _check(budget, within, rate, agents)
    whole = study.fit(confidence, method=method, proxy=proxy, estimand=estimand)
    if tolerances is None:
        tolerances = typical_tolerances(whole.bound.upper)
    chosen = tuple(float(tolerance) for tolerance in tolerances)
    if not chosen:
        raise InvalidInput("tolerances is empty; give one or more, or None for typical ones")
    if not all(tolerance >= 0 for tolerance in chosen):
        raise InvalidInput(f"the tolerance must be at least 0, got {min(chosen):g}")
    tuples = study.tuples(whole.proxy, estimand=estimand)
    notes = list(whole.notes)
    keys, folds = _folds(study)
    fits = _fit_folds(study, tuples, keys, folds, confidence, method, estimand, notes)
    held_out = fits is not None
    fold_of = dict(zip(keys, folds.tolist(), strict=True))
    episodes = _past_episodes(study, whole, fold_of, fits, chosen)
    rows = tuple(
        attention_row(
            episodes, index, tolerance, whole.n_values, column, within, rate * 3600, agents
        )
        for index, tolerance in enumerate(chosen)
        for column in range(len(whole.n_values))
    )
    distinct = len({episode.fingerprint for episode in episodes})
    if distinct < 0.9 * len(episodes):
        notes.append(f"only {distinct} of {len(episodes)} episodes are distinct")
    return Attention(
        rows=rows,
        budget=budget,
        choices=tuple(within_budget(rows, tolerance, budget) for tolerance in chosen),
        tolerances=chosen,
        rate=rate,
        agents=agents,
        within=within,
        episodes=len(episodes),
        distinct_episodes=distinct,
        decisions=sum(len(episode.margins[0]) for episode in episodes),
        held_out=held_out,
        proxy=whole.proxy,
        confidence=confidence,
        method=method,
        estimand=estimand,
        notes=tuple(notes),
    )


def _check(budget: float | None, within: int, rate: float, agents: int) -> None:
    if budget is not None and not 0 < budget <= 1:
        raise InvalidInput(f"the budget is a share of decisions between 0 and 1, got {budget:g}")
    if within < 1:
        raise InvalidInput(f"within must be at least 1 decision, got {within}")
    if not (rate > 0 and math.isfinite(rate)):
        raise InvalidInput(f"the rate must be above 0 decisions a second, got {rate:g}")
    if agents < 1:
        raise InvalidInput(f"agents must be at least 1, got {agents}")


def _folds(study: Study) -> tuple[list[Key], Integers]:
    """Return all episodes and the fold of each; similar episodes share a fold."""
    rows = study.store.query("SELECT phase, episode, life FROM episodes ORDER BY 1, 2, 3")
    keys: list[Key] = [(row[0], row[1], row[2]) for row in rows]
    _, group = np.unique(group_labels(study.store, keys), return_inverse=True)
    return keys, np.asarray(group % FOLDS, dtype=np.int64)


def _fit_folds(
    study: Study,
    tuples: Tuples,
    keys: Sequence[Key],
    folds: Integers,
    confidence: float,
    method: str,
    estimand: Estimand,
    notes: list[str],
) -> list[Margins] | None:
    """Return margins fitted without each fold; None where too few moments are left for that."""
    fold_of = {key[:2]: fold for key, fold in zip(keys, folds.tolist(), strict=True)}
    moments = zip(tuples.phases.tolist(), tuples.indices.tolist(), strict=True)
    fold = np.array([fold_of[moment] for moment in moments], dtype=np.int64)
    fits = []
    for left_out in range(FOLDS):
        try:
            sample = Sample.from_tuples(tuples, estimand, moments=fold != left_out)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoBound)
                fits.append(
                    margins_from_sample(
                        sample,
                        confidence,
                        method,
                        natural_proxies=(),
                        minimum_bandwidth=study.minimum_bandwidth,
                    )
                )
        except InvalidInput as error:
            notes.append(
                "the margins have seen the episodes they are judged on, which flatters them: "
                f"without a fifth of the moments, none can be fitted ({error})"
            )
            return None
    return fits


def _past_episodes(
    study: Study,
    whole: Margins,
    fold_of: dict[Key, int],
    fits: list[Margins] | None,
    tolerances: Sequence[float],
) -> list[PastEpisode]:
    """Return every episode with the margin at each decision."""
    measured = _measured(study.store, whole.n_values)
    episodes = []
    for phase, episode, life, opening, ended, fingerprint, rewards, proxies in study.store.query(
        "SELECT phase, episode, life, opening, ended, fingerprint, rewards, proxies FROM episodes "
        "JOIN episode_proxies USING (phase, episode, life) WHERE proxy = ? ORDER BY 1, 2, 3",
        whole.proxy,
    ):
        values = unpack(proxies)[opening:]
        if not len(values):
            continue
        margins = whole if fits is None else fits[fold_of[phase, episode, life]]
        step, losses = measured.get((phase, episode, life), (None, None))
        episodes.append(
            PastEpisode(
                margins=[
                    np.asarray(margins.lookup(values, tolerance).margin) for tolerance in tolerances
                ],
                fingerprint=fingerprint,
                terminated=ended == "terminated",
                setbacks=np.flatnonzero(unpack(rewards)[opening:] < 0),
                moment=None if step is None else step - opening,
                losses=losses,
            )
        )
    return episodes


def _measured(store: Store, n_values: Sequence[int]) -> dict[Key, tuple[int, Floats]]:
    """Return step and mean losses [n] of each natural moment that is measured for every n."""
    losses: dict[Key, list[float]] = {}
    steps: dict[Key, int] = {}
    for phase, episode, life, step, loss in store.query(
        "SELECT phase, episode, life, step, criticality FROM estimates "
        "JOIN moments USING (phase, episode, life) WHERE phase = 'natural' "
        "ORDER BY phase, episode, life, n"
    ):
        losses.setdefault((phase, episode, life), []).append(loss)
        steps[phase, episode, life] = step
    return {
        key: (steps[key], np.array(found))
        for key, found in losses.items()
        if len(found) == len(n_values)
    }
