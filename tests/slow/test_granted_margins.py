"""Statistical truth: what share of granted margins fails, under the laws with known truth.

`SAFEMARGIN_SLOW=1` runs the whole; otherwise a reduced number of studies. The figures found are
printed (pytest -s).
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.laws import LAWS, N_VALUES, draw_study, steps_of, tolerances_of

from safemargin.margins.methods import fit_bound

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("SAFEMARGIN_SLOW") == "1"
STUDIES = 100 if WHOLE else 10
MOMENTS = 1000
CONFIDENCE = 0.95


def failures(name: str) -> tuple[float, float, float, float]:
    """The share of granted margins that fail, the worst by fifth, and mean margins.

    All are exact given the cuts: the chance that C_n exceeds the tolerance is known at every
    natural step. The mean margins are those of the promise about the margin and of the bound.
    """
    law, rng = LAWS[name], np.random.default_rng(11)
    steps, tolerance = steps_of(name), tolerances_of(name, CONFIDENCE)[1]
    failed, given = np.zeros(5), np.zeros(5)
    margins = np.zeros(2)
    sizes = np.array([0, *N_VALUES])
    for _ in range(STUDIES):
        study = draw_study(law, MOMENTS, rng)
        for which, (method, options) in enumerate(
            (("granted", {"tolerances": (float(tolerance),)}), ("calibrated", {}))
        ):
            bound = fit_bound(
                study.proxies,
                study.losses,
                N_VALUES,
                confidence=CONFIDENCE,
                method=method,
                natural=study.natural,
                **options,  # type: ignore[arg-type]
            )
            upper = np.where(steps[:, None] > bound.grid[:, -1], np.inf, bound.at(steps))
            granted = np.logical_and.accumulate(upper <= tolerance, axis=1).sum(axis=1)
            margins[which] += sizes[granted].mean() / STUDIES
            if method == "granted":
                stays = law.below(np.full((len(steps), len(N_VALUES)), tolerance), steps[:, None])
                fails = 1 - stays[np.arange(len(steps)), np.maximum(granted - 1, 0)]
                part = np.arange(len(steps)) * 5 // len(steps)
                some = granted > 0
                failed += np.bincount(part[some], fails[some], minlength=5)
                given += np.bincount(part[some], minlength=5)
    shares = failed / np.maximum(given, 1)
    enough = given > 0.02 * STUDIES * len(steps)
    worst = float(shares[enough].max()) if enough.any() else 0.0
    return float(failed.sum() / max(given.sum(), 1)), worst, float(margins[0]), float(margins[1])


@pytest.mark.parametrize("name", sorted(LAWS))
def test_of_the_granted_margins_few_fail(name: str) -> None:
    share, worst, promised, bounded = failures(name)
    print(
        f"\n{name:24} {share:.3f} of the granted fail, {worst:.3f} in the worst fifth; mean margin "
        f"{promised:.2f}, by the bound {bounded:.2f} ({STUDIES} studies)"
    )
    assert share <= 0.05
    assert worst <= 0.09
