"""Predictions for moments that a model has not seen, and the choice among models.

Every moment that a bound is fitted to gets its value from a model that was trained without its
group: without its own game, its copies, and moments shortly before or after it on the same play.
Moments labelled only for training never get a value here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.core.seeding import hashed_seed
from safemargin.errors import InvalidInput
from safemargin.margins.learned.models import RECIPES, Recipe, fit_networks, fit_view
from safemargin.margins.learned.probe import Layer, View, predict

FOLDS = 5
FEWEST = 50
"""Fewer measured moments than this teach a model nothing."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """What a learned proxy is trained on."""

    inputs: npt.NDArray[np.float32]  # [moments, inputs]
    losses: Floats  # [moments, n]
    groups: npt.NDArray[np.int64]  # [moments] never split between training and judging; −1: labels
    kin: npt.NDArray[np.int64]  # [pairs, 2] index of a label, and a group that it is near to

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def labels(self) -> npt.NDArray[np.bool_]:
        """Marks cheap labels, which are for training only, [moments]."""
        return np.asarray(self.groups < 0)

    def take(self, rows: npt.NDArray[np.bool_]) -> Lessons:
        """Return some of the moments."""
        renumbered = np.cumsum(rows) - 1
        kept = self.kin[rows[self.kin[:, 0]]]
        kin = np.stack([renumbered[kept[:, 0]], kept[:, 1]], axis=1)
        return Lessons(self.inputs[rows], self.losses[rows], self.groups[rows], kin)

    def apart_from(self, judged: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mark the moments that share no group with the judged ones, and no label near them."""
        groups = np.unique(self.groups[judged])
        apart = ~np.isin(self.groups, groups)
        apart[self.kin[np.isin(self.kin[:, 1], groups), 0]] = False
        return apart


@dataclass(frozen=True, eq=False)
class Fold:
    """A view and its networks by recipe, trained without some groups."""

    view: View
    networks: dict[Recipe, list[list[Layer]]]


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The values of every moment by models that have not seen its group."""

    recipes: tuple[Recipe, ...]
    values: dict[Recipe, Floats]  # each [moments]; NaN for labels
    distances: Floats  # [moments] from what its model was trained on; NaN for labels
    folds: npt.NDArray[np.int64]  # [moments] −1 for labels


def cross_fit(
    lessons: Lessons,
    *,
    recipes: Sequence[Recipe] = RECIPES,
    folds: int = FOLDS,
    seed: int = 0,
    step: Callable[[], object] = lambda: None,
) -> CrossFit:
    """Predict every moment that is no label by models trained without its group."""
    fold = fold_of_groups(lessons, folds, seed)
    values = {recipe: np.full(len(lessons), np.nan) for recipe in recipes}
    distances = np.full(len(lessons), np.nan)
    for number in range(folds):
        judged = fold == number
        if not judged.any():
            continue
        trained = train(
            lessons.take(lessons.apart_from(judged)),
            recipes,
            seed=hashed_seed(seed, number),
            step=step,
        )
        coordinates, distances[judged] = trained.view(lessons.inputs[judged])
        for recipe, networks in trained.networks.items():
            values[recipe][judged] = predict(networks, coordinates)
    return CrossFit(tuple(recipes), values, distances, fold)


def train(
    lessons: Lessons,
    recipes: Sequence[Recipe],
    *,
    seed: int,
    step: Callable[[], object] = lambda: None,
) -> Fold:
    """Train the models of these recipes on all of these moments."""
    if len(lessons) < FEWEST // 2:
        raise InvalidInput(
            f"{len(lessons)} moments are too few to learn from; collect {FEWEST} or more, or "
            "cheap ones with --labels"
        )
    view = fit_view(lessons.inputs)
    coordinates, _ = view(lessons.inputs)
    networks = {}
    for recipe in recipes:
        networks[recipe] = fit_networks(recipe, coordinates, lessons.losses, seed)
        step()
    return Fold(view, networks)


def fold_of_groups(lessons: Lessons, folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Deal the groups of the moments to judge out to folds of even size, the largest first.

    The order of equally large groups is random. Labels belong to none: −1.
    """
    judged = np.flatnonzero(~lessons.labels)
    names, inverse, sizes = np.unique(
        lessons.groups[judged], return_inverse=True, return_counts=True
    )
    order = sorted(range(len(names)), key=lambda group: (-sizes[group], hashed_seed(seed, group)))
    filled = [0] * folds
    of_group = np.zeros(len(names), np.int64)
    for group in order:
        of_group[group] = int(np.argmin(filled))
        filled[of_group[group]] += int(sizes[group])
    if min(filled) == 0:
        raise InvalidInput(
            f"the moments lie on {len(names)} separate plays, and it takes {folds} to judge each "
            "model on plays that it has not seen; collect more varied episodes (a longer --opening)"
        )
    fold = np.full(len(lessons), -1, np.int64)
    fold[judged] = of_group[inverse.reshape(-1)]
    return fold


def available_recipes() -> tuple[Recipe, ...]:
    """Return the recipes whose library is installed."""
    if importlib.util.find_spec("sklearn") is None:
        return tuple(recipe for recipe in RECIPES if recipe.model != "networks")
    return RECIPES
