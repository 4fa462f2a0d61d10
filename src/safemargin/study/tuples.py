"""A study's measured moments and natural proxies as arrays, ready for a fit."""

from __future__ import annotations

import numpy as np

from safemargin.core.measured import parse_perturbation
from safemargin.core.records import EpisodeKey, Floats, Tuples
from safemargin.core.seeding import Purpose, stream
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins.bounds.table import STATISTICS, Estimand
from safemargin.margins.learned.probe import is_learned
from safemargin.margins.natural_proxies import draw_one_per_episode
from safemargin.study.grouping import group_labels, learned_groups
from safemargin.study.loss_statistics import read_statistic
from safemargin.study.reading import TupleRow
from safemargin.study.restop import read_under
from safemargin.study.single_runs import single_run_losses
from safemargin.study.store import Store


def read_tuples(
    store: Store,
    settings: Settings,
    proxy: str,
    estimand: Estimand = "mean",
    plan: Settings | None = None,
) -> Tuples:
    """Return the moments measured for every n, natural ones first, in collection order.

    With `plan`, estimates are recomputed as if other settings had stopped the trials.
    """
    n_values = settings.n_values
    if estimand == "single-run" and parse_perturbation(settings.perturb).kind == "worst":
        raise InvalidInput(
            f"the study in {store.folder} holds the worst sequence of each moment, which is not "
            "one run of many; leave out --estimand"
        )
    by_moment: dict[EpisodeKey, list[TupleRow]] = {}
    for row in store.tuple_rows(proxy):
        by_moment.setdefault(row.key, []).append(row)
    whole = {key: rows for key, rows in by_moment.items() if len(rows) == len(n_values)}
    keys = list(whole)
    table = np.array(
        [
            [(row.proxy_value, row.criticality, row.half_width, row.trials) for row in rows]
            for rows in whole.values()
        ],
        dtype=np.float64,
    ).reshape(len(whole), len(n_values), 4)
    values = table[:, :, 0]
    if plan is not None:
        table[:, :, 1:] = read_under(store, keys, plan)
    return Tuples(
        phases=np.array([key.phase for key in keys], dtype=np.str_),
        indices=np.array([key.index for key in keys], dtype=np.int64),
        lives=np.array([key.life for key in keys], dtype=np.int64),
        steps=np.array([rows[0].step for rows in whole.values()], dtype=np.int64),
        proxies=values if store.looks_at_n(proxy) else values[:, 0],
        criticalities=table[:, :, 1],
        half_widths=table[:, :, 2],
        trials=table[:, :, 3].astype(np.int64),
        n_values=n_values,
        proxy=proxy,
        groups=(
            learned_groups(store, keys, proxy) if is_learned(proxy) else group_labels(store, keys)
        ),
        runs=single_run_losses(store, keys, n_values) if estimand == "single-run" else None,
        statistics=(
            read_statistic(store, keys, n_values, estimand) if estimand in STATISTICS else None
        ),
    )


def not_empty(store: Store, tuples: Tuples) -> Tuples:
    """Return the tuples; StudyIncomplete if there are none."""
    if len(tuples) == 0:
        raise StudyIncomplete(
            f"the study in {store.folder} holds no finished moment yet; "
            "run `safemargin collect` on it first"
        )
    return tuples


def read_natural_proxies(store: Store, settings: Settings, proxy: str) -> Floats | None:
    """Return the proxy at one random decision of each game, openings left out, [games].

    None where the proxy looks at n, or is learned and not recorded along the episodes.
    """
    if store.looks_at_n(proxy) or (is_learned(proxy) and store.untraced(proxy)):
        return None
    games: dict[tuple[int, int], list[Floats]] = {}
    for trace in store.proxy_traces(proxy):
        games.setdefault(trace.key.game_keys, []).append(trace.values[trace.opening :])
    return draw_one_per_episode(
        [np.concatenate(lives) for lives in games.values()],
        stream(settings.seed, Purpose.NATURAL_PROXIES),
    )
