"""Which model serves a study best, judged by the margins that its values would grant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.seeding import hashed_seed
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.learned.crossfit import (
    CrossFit,
    Fold,
    Lessons,
    available_recipes,
    cross_fit,
    train,
)
from safemargin.margins.learned.models import Recipe
from safemargin.margins.learned.probe import Probe, predict
from safemargin.margins.methods import DEFAULT_METHOD, Promise, fit_sample, method_for
from safemargin.policies.base import ScoreKind

FALSE_ALARMS = 0.01
"""The share of natural moments that may wrongly count as unlike anything measured."""


@dataclass(frozen=True)
class Judge:
    """What models are compared by: the margins that a promise would grant on their values."""

    tolerances: tuple[float, ...]
    promise: Promise = "bound"
    confidence: float = 0.95

    @property
    def fit(self) -> dict[str, Any]:
        """The options of the fit that keeps the promise."""
        method = method_for(self.promise, DEFAULT_METHOD)
        named = {"tolerances": self.tolerances} if self.promise == "margin" else {}
        return {"method": method, "confidence": self.confidence, **named}


@dataclass(frozen=True, eq=False)
class Choice:
    """The best recipe, its values at moments it has not seen, and the model trained on all."""

    recipe: Recipe
    values: Floats  # [moments] NaN for labels
    distances: Floats  # [moments] NaN for labels
    worth: dict[Recipe, float]
    """The mean share of the perfect margin that each recipe's values would grant."""
    model: Fold


def choose(
    lessons: Lessons,
    natural: np.ndarray,  # [moments] of booleans
    n_values: Sequence[int],
    judge: Judge,
    *,
    recipes: Sequence[Recipe] | None = None,
    seed: int = 0,
    step: Callable[[], object] = lambda: None,
) -> Choice:
    """Cross-fit every recipe, take the one whose values grant most, and train it on everything."""
    recipes = available_recipes() if recipes is None else recipes
    fitted = cross_fit(lessons, recipes=recipes, seed=seed, step=step)
    best, worth = best_of(fitted, lessons, natural, n_values, judge)
    model = train(lessons, [best], seed=hashed_seed(seed, 1), step=step)
    return Choice(best, fitted.values[best], fitted.distances, worth, model)


def best_of(
    fitted: CrossFit,
    lessons: Lessons,
    natural: np.ndarray,
    n_values: Sequence[int],
    judge: Judge,
) -> tuple[Recipe, dict[Recipe, float]]:
    """Return the recipe whose values grant most, and what those of each are worth."""
    worth = {
        recipe: worth_of(values, lessons, natural, n_values, judge)
        for recipe, values in fitted.values.items()
    }
    return max(fitted.recipes, key=lambda recipe: worth[recipe]), worth


def worth_of(
    values: Floats,  # [moments]
    lessons: Lessons,
    natural: np.ndarray,  # [moments] of booleans
    n_values: Sequence[int],
    judge: Judge,
) -> float:
    """Return the mean share of the perfect margin that is granted on these values."""
    judged = ~lessons.labels
    sample = Sample.from_arrays(
        values[judged],
        lessons.losses[judged],
        n_values,
        natural=natural[judged],
        groups=lessons.groups[judged],
    )
    fit = judge.fit
    try:
        bound = fit_sample(sample, **fit)
    except InvalidInput:  # the values do not vary
        return 0.0
    rows = sample.take(sample.natural)
    upper = bound.at(rows.proxies[:, 0])
    shares = [
        mean_margin(upper, n_values, tolerance) / perfect
        for tolerance in judge.tolerances
        if (perfect := mean_margin(rows.running_maximum, n_values, tolerance)) > 0
    ]
    return float(np.mean(shares)) if shares else 0.0


def mean_margin(losses: Floats, n_values: Sequence[int], tolerance: float) -> float:
    """Return the mean of the largest n whose losses (or bounds) [moments, n] stay within ζ."""
    within = np.logical_and.accumulate(losses <= tolerance, axis=1).sum(axis=1)
    return float(np.array([0, *n_values])[within].mean())


def telling_tolerances(losses: Floats) -> tuple[float, ...]:
    """Return tolerances at which margins differ, from natural losses [moments, n]: three of them.

    They are quartiles of the largest loss at each moment, rounded to one digit.
    """
    largest = losses.max(axis=1)
    some = largest[largest > 0]
    if not len(some):
        return (1.0,)
    found = {float(f"{value:.1g}") for value in np.quantile(some, [0.25, 0.5, 0.75])}
    return tuple(sorted(found))


def farthest_of(distances: Floats) -> tuple[float, float]:
    """Return the distance beyond which a moment counts as outside, and the rate of false alarms.

    It is an order statistic of the distances of natural moments from models that have not seen
    them: a fresh natural moment lies farther with the probability that is returned.
    """
    count = len(distances)
    rank = min(int(np.ceil((count + 1) * (1 - FALSE_ALARMS) - 1e-9)), count)
    return float(np.sort(distances)[rank - 1]), 1 - rank / (count + 1)


def values_for_fold(
    lessons: Lessons,
    natural: np.ndarray,
    n_values: Sequence[int],
    seen: np.ndarray,  # [moments] of booleans
    judges: Sequence[Judge],
    *,
    recipes: Sequence[Recipe] | None = None,
    seed: int = 0,
) -> list[Floats]:
    """Return the values of all moments by models that know only those that are `seen`, [moments].

    Seen moments get cross-fitted values, the others those of the chosen model trained on all that
    are seen: what a user has who learned, and fitted, without the others. Labels that share a group
    with a moment not seen are left out as well. Each judge makes a choice of its own.
    """
    recipes = available_recipes() if recipes is None else recipes
    own = ~lessons.labels
    kept = lessons.apart_from(own & ~seen)
    known = lessons.take(kept)
    fitted = cross_fit(known, recipes=recipes, seed=seed)
    chosen = [best_of(fitted, known, natural[kept], n_values, judge)[0] for judge in judges]
    model = train(known, list(dict.fromkeys(chosen)), seed=hashed_seed(seed, 1))
    rest = own & ~kept
    coordinates, _ = model.view(lessons.inputs[rest])
    found = []
    for recipe in chosen:
        values = np.full(len(lessons), np.nan)
        values[kept] = fitted.values[recipe]
        values[rest] = predict(model.networks[recipe], coordinates)
        found.append(values)
    return found


def make_probe(
    recipe: Recipe,
    model: Fold,
    distances: Floats,  # of natural moments from models that have not seen them
    *,
    kind: ScoreKind,
    policy: str,
    hidden_width: int,
    **about: object,
) -> Probe:
    """Return a trained model as it travels, with what counts as outside; `about` goes with it."""
    farthest, false_alarms = farthest_of(distances)
    return Probe(
        kind=kind,
        policy=policy,
        hidden_width=hidden_width,
        view=model.view,
        networks=model.networks[recipe],
        farthest=farthest,
        about={
            "model": recipe.model,
            "target": recipe.target,
            **about,
            "outside_false_alarms": false_alarms,
        },
    )
