"""Statistical truth: how often the paper's bound holds where the law of c given p is known.

`SAFEMARGIN_SLOW=1` runs the whole; otherwise a reduced number of studies. The figures found are
printed (pytest -s) and kept as properties of the test report.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from safemargin.core.records import Floats
from safemargin.margins.methods import fit_bound
from safemargin.validation.validating import validate

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("SAFEMARGIN_SLOW") == "1"
STUDIES = 100 if WHOLE else 6
SCALES = (1.0, 2.0, 4.0)  # n = 1, 2, 4 lose so many times as much


@dataclass(frozen=True)
class Law:
    """A law of criticality given the proxy, at scale 1: draws, and the chance of c ≤ x."""

    draw: Callable[[Floats, np.random.Generator], Floats]
    below: Callable[[Floats, Floats], Floats]  # (x, p) → P(c ≤ x | p)


LAWS = {
    # c = p·u with u uniform in [0, 1]
    "uniform": Law(
        lambda p, rng: p * rng.random(p.shape),
        lambda x, p: np.clip(x / p, 0, 1),
    ),
    # c ~ N(p/2, 0.5)
    "gaussian": Law(
        lambda p, rng: p / 2 + 0.5 * rng.normal(size=p.shape),
        lambda x, p: norm.cdf(x, p / 2, 0.5),
    ),
    # nothing in four cases of five, else exponential with mean p
    "rare": Law(
        lambda p, rng: p * rng.exponential(size=p.shape) * (rng.random(p.shape) < 0.2),
        lambda x, p: np.where(x < 0, 0.0, 1 - 0.2 * np.exp(-np.maximum(x, 0) / p)),
    ),
}


def draw_study(
    law: Law, rng: np.random.Generator, moments: int
) -> tuple[Floats, Floats, Floats, Floats]:
    natural = rng.gamma(2, 1, moments // 2) + 0.1  # skewed to low values, as in the paper
    spread = rng.uniform(0.1, 8, moments // 2)
    losses = [
        np.stack([law.draw(p, rng) * scale for scale in SCALES], axis=1) for p in (natural, spread)
    ]
    return natural, losses[0], spread, losses[1]


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("name", sorted(LAWS))
@pytest.mark.parametrize("lift", [False, True])
def test_coverage_of_fresh_natural_steps(
    name: str, confidence: float, lift: bool, record_property: Callable[[str, object], None]
) -> None:
    law = LAWS[name]
    rng = np.random.default_rng(7)
    found = []
    for _ in range(STUDIES):
        natural, natural_losses, spread, spread_losses = draw_study(law, rng, 1000)
        bound = fit_bound(
            np.concatenate([natural, spread]),
            np.concatenate([natural_losses, spread_losses]),
            (1, 2, 4),
            confidence=confidence,
            method="paper",
            lift=lift,
        )
        fresh = rng.gamma(2, 1, 4000) + 0.1
        fresh = fresh[fresh <= bound.grid[0, -1]]  # above it the margin is 0 and flagged
        upper = bound.at(fresh)  # [fresh, n]
        found.append(
            [law.below(upper[:, i] / scale, fresh).mean() for i, scale in enumerate(SCALES)]
        )
    coverage = np.mean(found)  # exact given the bound; averaged over studies and n
    record_property("coverage", float(coverage))
    print(
        f"\n{name:8} β = {confidence} lift = {lift!s:5} covers {coverage:.4f} ({STUDIES} studies)"
    )
    assert coverage >= confidence - 0.01


def test_table_one_is_centred_near_the_exact_coverage(
    record_property: Callable[[str, object], None],
) -> None:
    """The held-out error of `validate` agrees with fresh draws: no leak from test to training."""
    law, rng = LAWS["gaussian"], np.random.default_rng(3)
    errors = [
        row.percentile_error
        for _ in range(STUDIES)
        for row in validate(*draw_study(law, rng, 1000), (1, 2, 4), method="paper").coverage
    ]
    record_property("percentile_error", float(np.mean(errors)))
    print(f"\nmean percentile error {np.mean(errors):+.4f}, sd {np.std(errors):.4f}")
    assert -0.05 < np.mean(errors) < 0.01
    assert np.std(errors) < 3 * 0.0154
