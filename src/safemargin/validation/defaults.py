"""The confidence and the tolerance that pages and commands start with where nobody chose them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from safemargin.core.records import Floats
from safemargin.margins.bounds.conformal import moments_needed
from safemargin.margins.lookup import Margins

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

    The number alone decides: a choice by what was measured would invalidate the confidence.
    """
    able = [
        level
        for level in CONFIDENCES
        if level <= DEFAULT_CONFIDENCE and natural_moments_needed(level) <= natural
    ]
    return able[-1] if able else CONFIDENCES[0]


def default_tolerance(margins: Margins | None) -> float:
    """Return a tolerance in the middle of a plateau, so that a little more or less changes nothing.

    The margin at one proxy rises with the tolerance in steps. Of the plateaus on which it is
    neither 0 nor the largest n, the widest at the median natural proxy is taken; where there is
    none, that of another quantile.
    """
    if margins is None:
        return 1.0
    highest = max((float(each) for each in _finite(margins.bound.upper)), default=0.0)
    for limits in _limits_at_quantiles(margins):
        # From limits[i] to limits[i + 1] the margin is the i-th n.
        ends = np.minimum(limits, max(highest, 2 * limits[0]))
        widths = np.diff(ends)
        widest = int(np.argmax(widths)) if len(widths) else 0
        if len(widths) and widths[widest] > 0:
            return _rounded(float(ends[widest]), float(ends[widest + 1]))
    return _rounded(highest, 2 * highest) if highest > 0 else 1.0


def median_proxy(margins: Margins) -> float | None:
    """Return the median natural proxy; None where the margins do not say, or it looks at n."""
    natural = margins.natural_proxies
    return None if natural is None else float(np.interp(0.5, *_quantile_curve(margins)))


def _limits_at_quantiles(margins: Margins) -> Iterator[Floats]:
    """Yield the tolerances from which each n is affordable, [n], at one proxy after another."""
    bound = margins.bound
    quantiles = (0.5, 0.6, 0.4, 0.75, 0.25, 0.9, 0.1)
    if margins.natural_proxies is None:
        columns = [round(each * (bound.grid.shape[1] - 1)) for each in quantiles]
        uppers = bound.upper.T[columns]
    else:
        uppers = bound.at(np.interp(quantiles, *_quantile_curve(margins)))
    for upper in np.maximum.accumulate(np.maximum(uppers, 0), axis=1):
        if np.isfinite(upper[0]):
            yield upper


def _quantile_curve(margins: Margins) -> tuple[Floats, Floats]:
    natural = margins.natural_proxies
    assert natural is not None
    return (natural.ranks - 0.5) / natural.count, natural.values


def _finite(values: Floats) -> Floats:
    return np.asarray(values[np.isfinite(values)])


def _rounded(low: float, high: float) -> float:
    """Return the middle of a range with the fewest digits that keep it in the middle half."""
    middle = (low + high) / 2
    for digits in range(1, 17):
        value = float(f"{middle:.{digits}g}")
        if abs(value - middle) <= (high - low) / 4:
            break
    return value
