"""Estimates that rest on a few rare losses: their half-widths hold less often than they state.

Student's half-width assumes that the mean of the trials is nearly normal. Where most trials lose
the same and a few lose much more, it is not: trials that missed the loss look sure of themselves.
That shows in the trials themselves, as two or three of them make nearly all of the spread.
"""

from __future__ import annotations

import numpy as np

from safemargin.core.records import Floats
from safemargin.study.store import Store

FEW = 3
"""An estimate rests on few trials if at most this many of them ..."""

MOST = 0.9
"""... make this share of the squared distances of all its losses from their median."""

OFTEN = 0.2
"""Estimates that rest on few trials are reported from this share on. Where it is reached, fewer
half-widths may hold than state it; normal, uniform and exponential losses stay below 0.03
(`tests/study/test_rare_losses.py`)."""

ENOUGH = 10
"""With fewer estimates than this, a share says nothing."""


def rests_on_few(losses: Floats) -> bool:
    """Whether at most three trials make nine tenths of the spread of these losses, [trials]."""
    distances = np.sort((losses - np.median(losses)) ** 2)
    return bool(distances[-FEW:].sum() >= MOST * distances.sum() * (1 - 1e-12))


def count_resting_on_few(store: Store) -> tuple[int, int]:
    """Return how many sampled estimates with any spread there are, and how many rest on few."""
    found = [
        rests_on_few(measurement.unperturbed - measurement.perturbed)
        for _, measurement in store.all_measurements()
        if measurement.estimate.half_width > 0
    ]
    return len(found), sum(found)


def describe_rare_losses(spread: int, resting_on_few: int) -> str | None:
    """Return a sentence if many of the estimates with spread rest on few trials, else None."""
    if spread < ENOUGH or resting_on_few < OFTEN * spread:
        return None
    return (
        f"in {resting_on_few:,} of {spread:,} sampled estimates with any spread, at most {FEW} "
        f"trials make {MOST:.0%} of it: where losses are rare and large, a half-width may hold "
        "less often than it states; take more trials, or the plan anytime, in a new study"
    )
