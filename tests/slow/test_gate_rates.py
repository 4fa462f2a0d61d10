"""How often a gate calls an equal agent worse, and whether it finds as much as it forecasts."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from helpers.roads import Walker, study

from safemargin.study.gating import gate
from safemargin.validation import checks
from safemargin.validation.verdicts import Check, Question, judge

TOLERANCE, ERROR = 0.2, 0.01
OLD = Walker()


@pytest.mark.slow
def test_an_equal_agent_is_rarely_worse(whole: bool) -> None:
    """Two studies of the same agent with different seeds: at most 16 of 200 times."""
    repetitions, allowed = (200, 16) if whole else (12, 2)
    verdicts = [
        gate(study(OLD, 2 * number + 1), study(OLD, 2 * number)).verdict
        for number in range(repetitions)
    ]
    print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))})
    assert verdicts.count("worse") <= allowed


def affordable(new: Walker, number: int, *, natural: int, paired: bool) -> Check:
    """Judge how much less than the old agent another affords, where just this much matters."""
    matters = OLD.mean_affordable(TOLERANCE) - new.mean_affordable(TOLERANCE)
    measure = partial(checks.affordable, tolerance=TOLERANCE, paired=paired)
    question = Question("affordable", "affordable", "actions", True, matters, True, measure)
    first = study(OLD, number, natural=natural)
    other = study(new, number if paired else number + 100_000, natural=natural)
    return judge(question, *checks.sides(first, other, paired=paired), ERROR)


@pytest.mark.slow
@pytest.mark.parametrize(("paired", "exposure"), [(True, 1.6), (False, 2.0)])
def test_as_many_moments_as_forecast_find_a_known_deterioration(
    paired: bool, exposure: float, whole: bool
) -> None:
    new, repetitions = Walker(exposure=exposure), 400 if whole else 60
    # A pilot of 50 moments says how many it takes to see this deterioration 4 times out of 5.
    pilots = [affordable(new, each, natural=50, paired=paired) for each in range(20)]
    needed = int(np.median([check.needed_for_matters or math.inf for check in pilots]))
    found = [
        affordable(new, 1000 + each, natural=needed, paired=paired).verdict == "worse"
        for each in range(repetitions)
    ]
    print(f"paired={paired}: {needed} moments, found {np.mean(found):.3f}")
    assert np.mean(found) >= 0.8 - 2.33 * math.sqrt(0.16 / repetitions)


@pytest.mark.slow
def test_the_power_stated_for_these_moments_is_that_found(whole: bool) -> None:
    repetitions = 400 if whole else 60
    new = Walker(exposure=2.0)
    found = [affordable(new, each, natural=200, paired=False) for each in range(repetitions)]
    stated = float(np.mean([check.power for check in found]))
    share = float(np.mean([check.verdict == "worse" for check in found]))
    print(f"stated {stated:.3f}, found {share:.3f}")
    assert share == pytest.approx(stated, abs=2.6 * math.sqrt(0.25 / repetitions))
