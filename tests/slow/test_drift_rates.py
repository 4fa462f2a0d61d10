"""How often the test for drift is wrong, and how soon it is right."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from safemargin.margins.natural_proxies import summarise
from safemargin.monitor.drift import DriftTest

Law = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.normal(size=size)


def few_values(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, 4, size).astype(float)


def outcome(law: Law, seed: int, *, reference: int, steps: int, shift: float = 0.0,
            change: int = 0, false_alarms: float = 0.05) -> int | None:  # fmt: skip
    """After how many episodes it fires; None: not within so many."""
    rng = np.random.default_rng(seed)
    test = DriftTest(
        summarise(law(rng, reference), seed=seed), false_alarms=false_alarms, seed=seed
    )
    live = law(rng, steps)
    live[change:] += shift
    return next((step for step, value in enumerate(live, 1) if test.add(value)), None)


@pytest.mark.slow
@pytest.mark.parametrize("law", [normal, few_values])
@pytest.mark.parametrize("reference", [30, 300])
def test_false_alarms_are_as_rare_as_stated(law: Law, reference: int, whole: bool) -> None:
    runs, steps = (1000, 1000) if whole else (60, 150)
    fired = sum(
        outcome(law, seed, reference=reference, steps=steps) is not None for seed in range(runs)
    )
    assert fired <= 0.05 * runs + 2.33 * math.sqrt(0.05 * 0.95 * runs)


@pytest.mark.slow
@pytest.mark.parametrize(("change", "within"), [(0, 40), (200, 80)])
def test_a_shift_is_noticed_soon(change: int, within: int, whole: bool) -> None:
    delays = [
        outcome(normal, seed, reference=300, steps=change + 400, shift=1.0, change=change,
                false_alarms=0.01)
        for seed in range(200 if whole else 15)
    ]  # fmt: skip
    late = [math.inf if delay is None else delay - change for delay in delays]
    assert np.median(late) < within
    assert max(late) < math.inf
