"""Whether two candidates differ in the margins they grant to the same moments, beyond noise.

The noise is that of the moments, and that of the fits.
"""

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

    Two tests have to show it. A paired sign test on sums: if neither grants more, then each game's
    sum of differences could as well have had the other sign. Moments of one game count once,
    because they are not independent. And, as all moments are judged by the same few fits, whose
    luck shifts all their margins alike, a test of whether the difference outlasts other fits.
    Where the moments are not the same ones, nothing is shown.
    """
    if not np.array_equal(one.sample.losses, other.sample.losses):
        return False
    natural = one.sample.natural
    differences = (one.margins(tolerance) - other.margins(tolerance))[natural]
    weights = differences.astype(np.float64)
    sums = np.asarray(np.bincount(one.sample.groups[natural], weights), dtype=np.float64)
    if sign_flip_p_value(sums) > LEVEL / tests:
        return False
    refitted = [
        float((one.margins(tolerance, ours) - other.margins(tolerance, theirs))[natural].mean())
        for ours, theirs in zip(one.refits, other.refits, strict=True)
    ]
    return jackknife_p_value(float(differences.mean()), np.array(refitted)) <= LEVEL / tests


def jackknife_p_value(difference: float, refitted: Floats) -> float:
    """Return how likely a difference this far from 0 is if there is none (two-sided).

    `refitted` are the differences after fits without each of several parts of the data, [parts].
    Their spread shows how much fits to other data would differ: the jackknife that deletes groups
    (Shao and Wu 1989), with Student's t for as many degrees of freedom as parts, less one.
    """
    from scipy.special import stdtr  # here: importing a study must not load scipy

    parts = len(refitted)
    spread = math.sqrt((parts - 1) / parts * float(((refitted - refitted.mean()) ** 2).sum()))
    if spread == 0:
        return 1.0 if difference == 0 else 0.0
    return 2 * float(stdtr(parts - 1, -abs(difference) / spread))


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
