"""Whether two candidates differ in the margins they grant to the same moments, beyond noise."""

from __future__ import annotations

import math

import numpy as np

from safemargin.core.records import Floats
from safemargin.validation.heldout import HeldOut

LEVEL = 0.05
"""The chance of calling any one of several equal candidates different."""

MOST_ENUMERATED = 12
"""Up to this many differences, all choices of signs are tried."""


def margins_differ(one: HeldOut, other: HeldOut, tolerance: float, *, tests: int) -> bool:
    """Whether natural moments show that two mean margins differ; one of this many tests.

    A paired sign test on sums: if neither grants more, then each game's sum of differences could as
    well have had the other sign. Moments of one game count once, because they are not independent.
    Where the moments are not the same ones, nothing is shown.
    """
    if not np.array_equal(one.sample.losses, other.sample.losses):
        return False
    natural = one.sample.natural
    differences = (one.margins(tolerance) - other.margins(tolerance))[natural]
    weights = differences.astype(np.float64)
    sums = np.asarray(np.bincount(one.sample.groups[natural], weights), dtype=np.float64)
    return sign_flip_p_value(sums) <= LEVEL / tests


def sign_flip_p_value(differences: Floats) -> float:
    """Return how likely random signs make a sum at least this far from 0 (two-sided).

    Exact for up to 12 differences that are not 0; by the normal approximation for more.
    """
    found = differences[differences != 0]
    if not len(found):
        return 1.0
    size = math.sqrt(float((found**2).sum()))
    far = abs(float(found.sum()))
    if len(found) > MOST_ENUMERATED:
        return math.erfc(far / size / math.sqrt(2))
    choices = np.arange(2 ** len(found))[:, None] >> np.arange(len(found)) & 1  # [choices, signs]
    sums = (1 - 2 * choices) @ found
    return float((np.abs(sums) >= far - 1e-9 * size).mean())
