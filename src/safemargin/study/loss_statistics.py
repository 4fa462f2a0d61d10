"""How the loss of a moment varies over its trials: standard deviation and percentiles.

A study keeps the return of every trial, so no trial is needed for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from safemargin.core.measured import parse_perturbation
from safemargin.core.records import EpisodeKey, Floats, Measurement
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins.bounds.table import STATISTICS
from safemargin.study.store import Store


def loss_statistic(measurement: Measurement, name: str) -> float | None:
    """Return a statistic of the losses of a moment's trials; None where these are too few.

    The loss of a trial is the mean unperturbed return less its own. A percentile is the smallest of
    them that the stated share of the trials does not exceed; a share q takes 1 / (1 − q) trials.
    Where every sequence was taken once, it is exact.
    """
    estimate = measurement.estimate
    losses = estimate.unperturbed - measurement.perturbed
    share = STATISTICS[name]
    if share is None:
        if not estimate.exact and len(losses) < 2:
            return None
        return float(losses.std(ddof=0 if estimate.exact else 1))
    if not estimate.exact and len(losses) < _fewest(share):
        return None
    return float(np.quantile(losses, share, method="inverted_cdf"))


def _fewest(share: float) -> int:
    return math.ceil(1 / (1 - share) - 1e-9)


def read_statistic(
    store: Store, keys: Sequence[EpisodeKey], n_values: Sequence[int], name: str
) -> Mapping[str, Floats]:
    """Return a statistic of moments measured for every n, by its name: [moments, n]."""
    if parse_perturbation(store.settings().perturb).kind == "worst":
        raise InvalidInput(
            f"the study in {store.folder} holds the worst sequence of each moment, and a {name} "
            "over its trials has no meaning; leave out --estimand"
        )
    rows, columns = {key: row for row, key in enumerate(keys)}, list(n_values)
    found = np.full((len(keys), len(columns)), np.nan)
    for key, measurement in store.all_measurements():
        if key not in rows:
            continue
        value = loss_statistic(measurement, name)
        if value is None:
            share = STATISTICS[name]
            raise StudyIncomplete(
                f"the study in {store.folder} has {len(measurement.perturbed)} trials of {key} for "
                f"n = {measurement.estimate.n}, too few for the {name} of their losses, which "
                f"takes {2 if share is None else _fewest(share)}; collect a study with more trials"
            )
        found[rows[key], columns.index(measurement.estimate.n)] = value
    return {name: found}
