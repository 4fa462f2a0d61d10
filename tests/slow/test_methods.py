"""Statistical truth: what the default bound is worth under 24 laws with known truth.

`SAFEMARGIN_SLOW=1` runs the whole (both sample sizes, three confidences); otherwise a part.
`python tests/helpers/worth.py` prints these figures as the tables of docs/methods.md.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.laws import ATOMS, FRESH, LAWS, N_VALUES, Law, draw_study, judge
from helpers.worth import Line, average, line

from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.criticality.plans import rule_of
from safemargin.criticality.stopping import StoppingRule
from safemargin.margins.methods import fit_bound

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("SAFEMARGIN_SLOW") == "1"
STUDIES = {"calibrated": 40, "paper": 40} if WHOLE else {"calibrated": 5, "paper": 1}
CASES = (
    [(moments, confidence) for moments in (1000, 2000) for confidence in (0.9, 0.95, 0.99)]
    if WHOLE
    else [(1000, 0.95)]
)
NOISE = 0.0 if WHOLE else 0.01
"""Few studies leave some noise in the means."""


@cache
def lines(moments: int, confidence: float, method: str) -> dict[str, Line]:
    assert len(LAWS) == 24
    return {law: line(law, moments, confidence, method, STUDIES[method]) for law in LAWS}


@pytest.mark.parametrize(("moments", "confidence"), CASES)
class TestTheDefault:
    """Averages over natural steps, n and studies; nothing about a single fit."""

    def test_it_covers_what_it_promises_and_little_more(
        self, moments: int, confidence: float
    ) -> None:
        for law, found in lines(moments, confidence, "calibrated").items():
            assert found.coverage >= confidence - 0.01 - NOISE, law
            # Where losses have an atom, the true percentile itself may cover more than β.
            least = found.allowed if law in ATOMS else confidence
            assert found.coverage <= least + 0.02 + NOISE, law

    def test_it_holds_in_every_fifth_of_the_range(self, moments: int, confidence: float) -> None:
        for law, found in lines(moments, confidence, "calibrated").items():
            assert found.worst_bin >= confidence - 0.025 - NOISE, law

    def test_the_chain_holds(self, moments: int, confidence: float) -> None:
        for law, found in lines(moments, confidence, "calibrated").items():
            assert found.chain_failure <= 1 - confidence + 0.01, law

    @pytest.mark.parametrize("laws", [LAWS, FRESH], ids=["all", "fresh"])
    def test_margins_are_near_the_best_possible(
        self, moments: int, confidence: float, laws: dict[str, Law]
    ) -> None:
        ours, paper = (
            average([lines(moments, confidence, method)[law] for law in laws])
            for method in ("calibrated", "paper")
        )
        print(f"\nM = {moments}, β = {confidence}: {ours:.3f} of the oracle's, paper {paper:.3f}")
        assert ours >= 0.8 - 2 * NOISE
        if laws is LAWS:
            assert ours >= (1.3 - 5 * NOISE) * paper


@pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))
def test_laws_are_what_they_say(law: Law) -> None:
    """The closed form of P(C_n ≤ x | p) agrees with random draws."""
    rng = np.random.default_rng(3)
    draws = 40_000
    steps = law.natural(np.array([0.1, 0.5, 0.95]))
    assert len(steps) == 3
    for p in steps:
        largest = np.maximum.accumulate(law.draw(np.full(draws, p), rng), axis=1)  # [draws, n]
        for level in (0.3, 0.9, 0.99):
            x = np.quantile(largest, level, axis=0)[None]  # [1, n]
            counted = (largest <= x).mean(axis=0)
            assert law.below(x, np.array([[p]]))[0] == pytest.approx(counted, abs=0.01)


@pytest.mark.parametrize("law", ["uniform", "bimodal", "blind"])
@pytest.mark.parametrize("confidence", [0.8, 0.9])
def test_split_calibration_covers_in_every_bin(law: str, confidence: float) -> None:
    """The exact guarantee, averaged over studies: at least β, in small studies, in every bin."""
    rng = np.random.default_rng(11)
    found = []
    for _ in range(200 if WHOLE else 25):
        study = draw_study(LAWS[law], 200, rng)
        bound = fit_bound(
            study.proxies,
            study.losses,
            N_VALUES,
            confidence=confidence,
            natural=study.natural,
            calibration="split",
            calibration_bins=1,
        )
        found.append(judge(bound, law).coverage.mean(axis=0))  # [n]
    noise = 2.5 * np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.mean(found, axis=0) >= confidence - noise).all()


def measured(
    chances: Floats, loss: float, rng: np.random.Generator, **settings: Any
) -> list[StoppingRule]:
    """Run the trials of moments that lose `loss` with these chances, as the settings' plan asks.

    Returns each moment's rule, which holds the estimate and the number of trials, [moments].
    """
    given = Settings(**settings)
    losses = loss * (rng.random((len(chances), given.max_trials)) < chances[:, None])
    rules = []
    for row in losses.tolist():
        rule = rule_of(given)
        for value in row:
            rule.add(value)
            if rule.stopped:
                break
        rules.append(rule)
    return rules


def test_the_papers_rule_stops_early_where_no_trial_lost_and_else_when_the_mean_is_known() -> None:
    """A loss of 10 with a chance of 5 %: all of the first ten trials miss it in 0.95¹⁰ = 60 %."""
    moments = 4000 if WHOLE else 800
    rules = measured(np.full(moments, 0.05), 10.0, np.random.default_rng(2), trial_plan="paper")
    trials = np.array([rule.trials for rule in rules])
    means = np.array([rule.mean for rule in rules])
    early = trials == 10
    assert (means[early] == 0).all()
    assert early.mean() == pytest.approx(0.95**10, abs=3 * np.sqrt(0.6 * 0.4 / moments))
    # The others go on until 1.96 · 10 · √(0.05 · 0.95) / √N ≤ 0.2, about 456 trials, ...
    assert trials[~early].mean() == pytest.approx(456, rel=0.06)
    # ... and are within 0.2 of the true mean, 0.5, about as often as stated.
    assert 0.89 < (abs(means[~early] - 0.5) <= 0.2).mean() < 0.98


def test_rare_large_losses_are_covered() -> None:
    """Zero-inflated: the paper's rule stops when the first ten trials are zero, ours does not.

    The bound is fitted on estimates, and judged by the true expected loss of fresh moments.
    """
    rng = np.random.default_rng(5)
    covered: dict[str, list[float]] = {"default": [], "paper": []}
    for _ in range(20 if WHOLE else 4):
        proxies = rng.gamma(2, 1, 800) + 0.1
        chances = np.clip(0.02 * proxies * rng.exponential(size=800), 0, 0.3)
        fresh = rng.gamma(2, 1, 20_000) + 0.1
        truth = 10 * np.clip(0.02 * fresh * rng.exponential(size=20_000), 0, 0.3)
        for name, plan, method in (
            ("default", "fixed", "calibrated"),
            ("paper", "paper", "paper"),
        ):
            rules = measured(chances, 10.0, rng, trial_plan=plan)
            c = np.array([rule.mean for rule in rules])
            bound = fit_bound(proxies, c[:, None], (1,), confidence=0.95, method=method)
            inside = fresh <= bound.grid[0, -1]
            held = truth[inside] <= bound.at(fresh[inside])[:, 0]
            covered[name].append(float(held.mean()))
    means = {name: float(np.mean(values)) for name, values in covered.items()}
    print(f"\ntrue expected loss covered at β = 0.95: {means}")
    assert means["default"] >= 0.95 - 0.01
    assert means["paper"] < means["default"]
