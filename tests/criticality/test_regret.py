"""Regret and stakes: by hand, and in worlds where the best action is known."""

from __future__ import annotations

import numpy as np
import pytest

from safemargin.core.records import Estimate, Measurement
from safemargin.criticality.regret import regret_of


def measured(
    perturbed: list[float], unperturbed: list[float], *, n: int = 1, exact: bool = True
) -> Measurement:
    own, mean = float(np.mean(unperturbed)), float(np.mean(perturbed))
    estimate = Estimate(n, own - mean, 0.0, len(perturbed), exact, own)
    return Measurement(estimate, np.array(perturbed), np.array(unperturbed), steps=0)


def test_three_numbers_of_one_fan_out() -> None:
    found = regret_of(measured([1.0, 4.0, 1.0], [1.0]), random=False)
    assert found is not None
    assert (found.criticality, found.regret, found.stakes) == (-1.0, 3.0, 2.0)
    assert found.how == "exact"
    assert found.criticality + found.regret == found.stakes == 4.0 - 2.0


def test_the_best_of_those_tried_is_a_lower_bound() -> None:
    found = regret_of(measured([1.0, 2.0], [3.0], n=4, exact=False), random=False)
    assert found is not None
    assert (found.regret, found.how, found.n) == (0.0, "sampled", 4)


def test_chance_is_averaged_and_luck_is_not_counted() -> None:
    """Action 1 gains 2 on average; action 2 gains 9 once, by luck, and loses 3 otherwise."""
    actions = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    gains = [0.0, 0.0, 1.0, 3.0, 2.0, 2.0, 9.0, -3.0, -3.0, -3.0]
    found = regret_of(measured(gains, [0.0] * 10, exact=False), random=True, first_actions=actions)
    assert found is not None
    # The first half sees action 2 gain 3 and takes it: the other half loses 3. The second half
    # sees action 1 gain 2.5, which is worth 1.5 in the first.
    assert found.regret == (-3.0 + 1.5) / 2
    assert found.how == "averaged"


def test_no_regret_where_it_cannot_be_seen() -> None:
    once = measured([1.0, 2.0], [0.0, 0.0], exact=False)
    assert regret_of(once, random=True) is None
    assert regret_of(once, random=True, first_actions=np.array([0, 1])) is None
    longer = measured([1.0, 2.0], [0.0, 0.0], n=2, exact=False)
    assert regret_of(longer, random=True, first_actions=np.array([0, 0])) is None


@pytest.mark.parametrize("seed", range(5))
def test_regret_is_never_negative_without_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    returns = rng.normal(size=6).tolist()
    found = regret_of(measured(returns, [returns[seed]]), random=False)
    assert found is not None
    assert found.regret >= 0
    assert found.stakes == pytest.approx(max(returns) - float(np.mean(returns)))
