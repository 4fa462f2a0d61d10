"""Oversight in hindsight: what a monitor would have done in the episodes of a study.

A study holds the proxy at every step of its episodes. Each episode is judged by margins that were
fitted without it and without similar ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from safemargin.core.budget import Budget
from safemargin.core.records import EpisodeKey, Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.fitting import NoBound, margins_from_sample
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.monitor.attention import Attention, PastEpisode, attention_row, within_budget
from safemargin.monitor.failures import Failures, find_failures
from safemargin.study.grouping import group_labels
from safemargin.study.study import Study
from safemargin.validation.defaults import default_tolerance
from safemargin.validation.heldout import typical_tolerances

FOLDS = 5


def simulate_oversight(
    study: Study,
    *,
    budget: str | float | Budget | None = None,
    tolerances: Sequence[float] | None = None,
    fail: str | None = None,
    within: int = 8,
    rate: float = 15.0,
    agents: int = 1,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    proxy: str | None = None,
    estimand: Estimand = "mean",
) -> Attention:
    """Return what calling at each threshold would have cost and caught in a study's episodes.

    `budget`: what people can attend to, a share of decisions or calls an hour ('20/hour'). `fail`:
    what counts as a failure (see `failures`; None: chosen from the study). `within`: a call counts
    up to this many decisions before a failure. `rate`: decisions per second of one agent. Calls end
    as a monitor ends them by default: at the next measured n above `call_at`.
    """
    limit = None if budget is None else parse_budget(budget)
    check_attention(within, rate, agents)
    failures = find_failures(study, fail)
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
    held_out = _try_held_out(study, whole, tuples, notes)
    episodes = _past_episodes(study, whole, tuples, held_out, chosen, failures)
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
        budget=limit,
        choices=tuple(within_budget(rows, tolerance, limit) for tolerance in chosen),
        tolerances=chosen,
        fail=failures.text,
        why=failures.why,
        rate=rate,
        agents=agents,
        within=within,
        episodes=len(episodes),
        distinct_episodes=distinct,
        decisions=sum(len(episode.margins[0]) for episode in episodes),
        held_out=held_out is not None,
        proxy=whole.proxy,
        confidence=confidence,
        method=method,
        estimand=estimand,
        notes=tuple(notes),
    )


def hindsight_margins(
    study: Study, tolerance: float | None, notes: list[str], *, confidence: float, method: str
) -> tuple[dict[EpisodeKey, Floats], float]:
    """Return the margin at every decision after the openings, by fits without the episode.

    The second value is the tolerance: the one given, or one at which margins differ.
    """
    whole = study.fit(confidence, method=method)
    level = default_tolerance(whole) if tolerance is None else tolerance
    held_out = _try_held_out(study, whole, study.tuples(whole.proxy), notes)
    margins = {}
    for trace in study.store.proxy_traces(whole.proxy):
        fitted = whole if held_out is None else held_out[trace.key]
        found = fitted.lookup(trace.values[trace.opening :], level).margin
        margins[trace.key] = np.asarray(found, dtype=np.float64)
    return margins, float(level)


def _try_held_out(
    study: Study, whole: Margins, tuples: Tuples, notes: list[str]
) -> dict[EpisodeKey, Margins] | None:
    """Return what `_held_out` does, or None and a note why that is not possible."""
    try:
        return _held_out(study, whole, tuples)
    except InvalidInput as error:
        notes.append(
            "the margins have seen the episodes they are judged on, which flatters them: "
            f"without a fifth of the moments, none can be fitted ({error})"
        )
        return None


def parse_budget(given: str | float | Budget) -> Budget:
    """Return the budget that is given; InvalidInput where it allows nothing."""
    budget = Budget.parse(given)
    if not budget.amount:
        raise InvalidInput(f"the budget must be above 0, got {budget}: nobody would look at all")
    return budget


def check_attention(within: int, rate: float, agents: int) -> None:
    """Raise InvalidInput for options that make no sense."""
    if within < 1:
        raise InvalidInput(f"within must be at least 1 decision, got {within}")
    if not (rate > 0 and math.isfinite(rate)):
        raise InvalidInput(f"the rate must be above 0 decisions a second, got {rate:g}")
    if agents < 1:
        raise InvalidInput(f"agents must be at least 1, got {agents}")


def _held_out(study: Study, whole: Margins, tuples: Tuples) -> dict[EpisodeKey, Margins]:
    """Return for each episode margins that were fitted without it and without similar ones.

    InvalidInput where too few moments are left for that.
    """
    keys = list(study.store.fingerprints())
    _, group = np.unique(group_labels(study.store, keys), return_inverse=True)
    fold_of = dict(zip(keys, (group % FOLDS).tolist(), strict=True))
    fold = np.array([fold_of[key] for key in tuples.keys], dtype=np.int64)
    fits = []
    for left_out in range(FOLDS):
        sample = Sample.from_tuples(tuples, whole.estimand, moments=fold != left_out)
        with warnings.catch_warnings(action="ignore", category=NoBound):
            fits.append(
                margins_from_sample(
                    sample,
                    whole.confidence,
                    whole.method,
                    natural_proxies=(),
                    minimum_bandwidth=study.minimum_bandwidth,
                )
            )
    return {key: fits[fold] for key, fold in fold_of.items()}


def _past_episodes(
    study: Study,
    whole: Margins,
    tuples: Tuples,
    held_out: Mapping[EpisodeKey, Margins] | None,
    tolerances: Sequence[float],
    failures: Failures,
) -> list[PastEpisode]:
    """Return every episode with the margin at each decision."""
    measured = {
        key: (int(step), losses)
        for key, step, losses in zip(tuples.keys, tuples.steps, tuples.criticalities, strict=True)
        if key.phase == "natural"
    }
    episodes = []
    for trace in study.store.proxy_traces(whole.proxy):
        values = trace.values[trace.opening :]
        if not len(values):
            continue
        margins = whole if held_out is None else held_out[trace.key]
        step, losses = measured.get(trace.key, (None, None))
        episodes.append(
            PastEpisode(
                margins=[
                    np.asarray(margins.lookup(values, tolerance).margin) for tolerance in tolerances
                ],
                fingerprint=trace.fingerprint,
                failures=failures.after_opening(trace),
                moment=None if step is None else step - trace.opening,
                losses=losses,
            )
        )
    return episodes
