"""The losses of single runs, as one person will see them, from a study's raw trial returns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from safemargin.core.records import EpisodeKey, Floats
from safemargin.core.seeding import plain_generator
from safemargin.study.store import Store

RUNS = 8
"""Runs of each moment that a fit gets; more add little, as moments differ more than runs."""


def single_run_losses(
    store: Store, moments: Sequence[EpisodeKey], n_values: Sequence[int]
) -> Floats:
    """Return how far single runs fell below the mean unperturbed return, [moments, runs, n].

    The runs are spread evenly over the trials of a moment. If all n have the same number of trials,
    a run is the same trial for every n, and its random actions for a smaller n are the first of
    those for a larger one; if all of a few sequences were taken, runs of different n are unrelated.
    """
    losses = np.full((len(moments), RUNS, len(n_values)), np.nan)
    rows = {key: row for row, key in enumerate(moments)}
    columns = {n: column for column, n in enumerate(n_values)}
    for key, measurement in store.all_measurements():
        if key not in rows:
            continue
        returns = measurement.perturbed
        rng = plain_generator(zlib.crc32(f"{key.phase} {key.index} {key.life}".encode()))
        positions = (np.arange(RUNS) + rng.random(RUNS)) / RUNS
        chosen = (rng.permutation(positions) * len(returns)).astype(np.int64)
        estimate = measurement.estimate
        losses[rows[key], :, columns[estimate.n]] = estimate.unperturbed - returns[chosen]
    return losses
