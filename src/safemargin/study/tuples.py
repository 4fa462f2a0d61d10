"""What a fit needs of a study, read from its database into arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from safemargin.core.records import EpisodeKey, Floats, Tuples
from safemargin.core.seeding import Purpose, stream
from safemargin.core.settings import Settings
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.natural_proxies import draw_one_per_episode
from safemargin.study.blobs import unpack
from safemargin.study.grouping import group_labels
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
    """The moments that are measured for every n, natural ones first, in collection order.

    `plan` reads them as if their trials had been stopped by other settings.
    """
    n_values = settings.n_values
    rows = store.query(
        "SELECT phase, episode, life, step, proxy_value, criticality, half_width, trials "
        "FROM tuples WHERE proxy = ? ORDER BY phase, episode, life, n",
        proxy,
    )
    by_moment: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        by_moment.setdefault(row[:3], []).append(row)
    whole = [group for group in by_moment.values() if len(group) == len(n_values)]
    table = np.array([[row[4:] for row in group] for group in whole], dtype=np.float64)
    table = table.reshape(len(whole), len(n_values), 4)
    values = table[:, :, 0]
    if plan is not None:
        keys = [EpisodeKey(*group[0][:3]) for group in whole]
        reading = read_under(store, keys, settings, plan)
        table[:, :, 1] = reading.criticalities
        table[:, :, 2] = reading.half_widths
        table[:, :, 3] = reading.trials
    return Tuples(
        phases=np.array([group[0][0] for group in whole], dtype=np.str_),
        indices=np.array([group[0][1] for group in whole], dtype=np.int64),
        steps=np.array([group[0][3] for group in whole], dtype=np.int64),
        proxies=values if looks_at_n(store, proxy) else values[:, 0],
        criticalities=table[:, :, 1],
        half_widths=table[:, :, 2],
        trials=table[:, :, 3].astype(np.int64),
        n_values=n_values,
        proxy=proxy,
        groups=group_labels(store, [group[0][:3] for group in whole]),
        runs=None
        if estimand == "mean"
        else single_run_losses(store, [group[0][:3] for group in whole], n_values),
    )


def looks_at_n(store: Store, proxy: str) -> bool:
    """Whether a proxy has a value for each n."""
    return bool(store.query("SELECT 1 FROM moment_proxies WHERE proxy = ? AND n > 0", proxy))


def read_natural_proxies(store: Store, settings: Settings, proxy: str) -> Floats | None:
    """The proxy at one random decision of each game of either phase, openings left out.

    None where the proxy looks at n.
    """
    if looks_at_n(store, proxy):
        return None
    games: dict[tuple[Any, ...], list[Floats]] = {}
    for phase, episode, opening, values in store.query(
        "SELECT phase, episode, opening, proxies FROM episode_proxies "
        "JOIN episodes USING (phase, episode, life) WHERE proxy = ? "
        "ORDER BY phase, episode, life",
        proxy,
    ):
        games.setdefault((phase, episode), []).append(unpack(values)[opening:])
    return draw_one_per_episode(
        [np.concatenate(lives) for lives in games.values()],
        stream(settings.seed, Purpose.NATURAL_PROXIES),
    )
