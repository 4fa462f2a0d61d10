"""The losses of single runs, from the raw trial returns of a study: what one person will see."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.seeding import plain_generator
from safemargin.study.blobs import unpack
from safemargin.study.store import Store

RUNS = 8
"""Runs of a moment that are handed to a fit; more add little, since moments differ more."""


def single_run_losses(
    store: Store,
    moments: Sequence[tuple[str, int, int]],  # phase, episode, life
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
    for phase, episode, life, n, unperturbed, blob in store.query(
        "SELECT phase, episode, life, n, unperturbed, perturbed_returns FROM estimates"
    ):
        row = rows.get((phase, episode, life))
        if row is None or n not in columns:
            continue
        returns = unpack(blob)
        rng = plain_generator(zlib.crc32(f"{phase} {episode} {life}".encode()))
        places = (np.arange(runs) + rng.random(runs)) / runs
        chosen = (rng.permutation(places) * len(returns)).astype(np.int64)
        losses[row, :, columns[n]] = unperturbed - returns[chosen]
    return losses
