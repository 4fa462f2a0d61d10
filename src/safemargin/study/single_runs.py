"""The losses of single runs, from the raw trial returns of a study: what one person will see."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from safemargin.core.records import EpisodeKey, Floats
from safemargin.study.store import Store

RUNS = 8
"""Runs of a moment that are handed to a fit; more add little, since moments differ more."""


def single_run_losses(
    store: Store,
    moments: Sequence[EpisodeKey],
    n_values: Sequence[int],
    *,
    runs: int = RUNS,
) -> Floats:
    """How far single perturbed runs fell below the mean unperturbed return, [moments, runs, n].

    The runs are spread evenly over the trials of a moment. Where all n have equally many trials, a
    run is the same trial for every n, and its random actions for a smaller n are the first ones of
    those for a larger; where few sequences exist and all were taken, it is a trial by itself.
    """
    losses = np.full((len(moments), runs, len(n_values)), np.nan)
    rows = {key: row for row, key in enumerate(moments)}
    columns = {n: column for column, n in enumerate(n_values)}
    for key, n, unperturbed, returns in store.trial_returns():
        if key not in rows:
            continue
        rng = np.random.default_rng(zlib.crc32(f"{key.phase} {key.index} {key.life}".encode()))
        places = (np.arange(runs) + rng.random(runs)) / runs
        chosen = (rng.permutation(places) * len(returns)).astype(np.int64)
        losses[rows[key], :, columns[n]] = unperturbed - returns[chosen]
    return losses
