"""Statistical truth of both promises with a learned proxy, under laws with known truth.

What a policy's network would make of a step is imitated: numbers that hold the step, mixed and with
noise. The model learns from the losses, and how often its margins fail on fresh steps is exact.
`SAFEMARGIN_SLOW=1` runs the whole; otherwise a few studies. The figures found are printed
(pytest -s).
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.laws import LAWS, N_VALUES, draw_study, steps_of, tolerances_of

from safemargin.core.records import Floats
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.learned.choosing import Judge, choose
from safemargin.margins.learned.crossfit import Lessons
from safemargin.margins.learned.models import Recipe
from safemargin.margins.learned.probe import predict
from safemargin.margins.methods import Promise, fit_sample

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("SAFEMARGIN_SLOW") == "1"
STUDIES = 5 if WHOLE else 2
MOMENTS = 800 if WHOLE else 400
NAMES = sorted(LAWS) if WHOLE else sorted(LAWS)[:1]
RECIPES = [Recipe("ridge", target) for target in ("mean log size", "broken share")]


def features(steps: Floats, highest: float, mixing: Floats, rng: np.random.Generator) -> np.ndarray:
    """Show steps as a network might: [moments, 40]."""
    relative = steps / highest
    waves = np.stack([np.sin((each + 1) * relative) for each in range(6)], axis=1)
    noise = 0.1 * rng.normal(size=(len(steps), 40))
    return np.asarray(np.tanh(waves @ mixing) + noise, np.float32)


def failures(name: str, promise: Promise) -> tuple[float, float, float]:
    """The share of granted margins that fail, of all that do, and the mean margin."""
    law, rng = LAWS[name], np.random.default_rng(5)
    steps, tolerance = steps_of(name), float(tolerances_of(name, 0.95)[1])
    judge, mixing = Judge((tolerance,), promise), rng.normal(size=(6, 40))
    highest = float(np.abs(steps).max())
    failed = granted_share = mean = 0.0
    for _ in range(STUDIES):
        study = draw_study(law, MOMENTS, rng)
        lessons = Lessons(
            features(study.proxies, highest, mixing, rng),
            study.losses,
            np.arange(len(study.proxies)),
            np.zeros((0, 2), np.int64),
        )
        choice = choose(lessons, study.natural, N_VALUES, judge, recipes=RECIPES)
        sample = Sample.from_arrays(choice.values, study.losses, N_VALUES, natural=study.natural)
        bound = fit_sample(sample, **judge.fit)
        fresh = features(steps, highest, mixing, rng)
        values = predict(choice.model.networks[choice.recipe], choice.model.view(fresh)[0])
        upper = np.where(values[:, None] > bound.grid[:, -1], np.inf, bound.at(values))
        count = np.logical_and.accumulate(upper <= tolerance, axis=1).sum(axis=1)
        stays = law.below(np.full((len(steps), len(N_VALUES)), tolerance), steps[:, None])
        fails = 1 - stays[np.arange(len(steps)), np.maximum(count - 1, 0)]
        failed += float(fails[count > 0].sum()) / len(steps)
        granted_share += float((count > 0).mean())
        mean += float(np.array([0, *N_VALUES])[count].mean()) / STUDIES
    return failed / max(granted_share, 1e-9), failed / STUDIES, mean


@pytest.mark.parametrize("name", NAMES)
def test_both_promises_hold_with_a_learned_proxy(name: str) -> None:
    of_granted, _, margin = failures(name, "margin")
    _, of_all, bounded = failures(name, "bound")
    print(
        f"\n{name:24} {of_granted:.3f} of the granted fail, mean margin {margin:.2f}; by the bound "
        f"{of_all:.3f} of all, {bounded:.2f} ({STUDIES} studies of {MOMENTS})"
    )
    slack = 0.01 if WHOLE else 0.03  # for few studies
    assert of_granted <= 0.05 + slack
    assert of_all <= 0.05 + slack
