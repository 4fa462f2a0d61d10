"""The confidence that pages and commands start with where nobody chose one."""

from __future__ import annotations

from safemargin.margins.bounds.conformal import moments_needed

CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Those that pages offer."""

DEFAULT_CONFIDENCE = 0.95
"""That of `safemargin fit`; nothing starts at a higher one."""


def natural_moments_needed(confidence: float) -> int:
    """Return how many natural moments it takes for margins that depend on the proxy.

    Half as many give a bound, but it is the largest loss for every proxy, and below that loss each
    margin is 0 for lack of data.
    """
    return 2 * moments_needed(confidence, 1)


def default_confidence(natural: int) -> float:
    """Return the highest confidence up to 0.95 that this many natural moments suffice for.

    The number alone decides: a choice by what was measured would void the confidence.
    """
    able = [
        level
        for level in CONFIDENCES
        if level <= DEFAULT_CONFIDENCE and natural_moments_needed(level) <= natural
    ]
    return able[-1] if able else CONFIDENCES[0]
