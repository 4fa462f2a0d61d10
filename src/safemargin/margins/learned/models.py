"""The models behind learned proxies: ridge regression, and a small ensemble of networks.

Both work on a few main directions of the inputs (`View`), and both predict a summary of the losses
at a moment: their size on a log scale, where losses scatter to both sides (that of the largest
loss, or the mean over n, which also knows how early losses set in), the largest loss, or how many n
break a tolerance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import MissingExtra
from safemargin.margins.learned.probe import Arrays, Layer, View

AXES = 64
SPARE_AXES = 32
ITERATIONS = 8
PENALTIES: Floats = np.logspace(-3, 5, 33)
MEMBERS = 4
HIDDEN = (64, 32)


def log_size(losses: Floats) -> Floats:
    """log(ε + max over n of |c_n|): how strongly losses scatter, to either side, [moments]."""
    return _log_sizes(losses)[:, -1]


def mean_log_size(losses: Floats) -> Floats:
    """The mean over n of log(ε + max over n' ≤ n of |c_n'|), [moments].

    Of two moments with the same largest loss, the one where fewer mistakes reach it counts higher.
    """
    return np.asarray(_log_sizes(losses).mean(axis=1))


def _log_sizes(losses: Floats) -> Floats:
    """log(ε + the largest size so far), [moments, n].

    ε, a tenth of the median size of losses that are not 0, keeps the logarithm of 0 near the rest.
    """
    sizes = np.maximum.accumulate(np.abs(losses), axis=1)
    some = sizes[:, -1][sizes[:, -1] > 0]
    return np.asarray(np.log(sizes + 0.1 * (np.median(some) if len(some) else 1.0)))


def largest_loss(losses: Floats) -> Floats:
    """max over n of c_n, at least 0, [moments]."""
    return np.asarray(np.maximum(losses, 0).max(axis=1))


def broken_share(losses: Floats) -> Floats:
    """The share of all n whose largest loss so far exceeds a tolerance, [moments].

    It is the mean over three tolerances, the quartiles of the largest losses above 0: what a margin
    depends on, whatever the size of the loss beyond.
    """
    worst = np.maximum.accumulate(np.maximum(losses, 0), axis=1)
    some = worst[:, -1][worst[:, -1] > 0]
    tolerances = np.quantile(some, [0.25, 0.5, 0.75]) if len(some) else np.zeros(1)
    return np.asarray((worst[..., None] > tolerances).mean(axis=(1, 2)))


TARGETS: dict[str, Callable[[Floats], Floats]] = {
    "log size": log_size,
    "mean log size": mean_log_size,
    "largest loss": largest_loss,
    "broken share": broken_share,
}


@dataclass(frozen=True)
class Recipe:
    """A model and what it is trained to predict."""

    model: str
    target: str

    def __str__(self) -> str:
        return f"{self.model} on {self.target}"


RECIPES = tuple(Recipe(model, target) for model in ("ridge", "networks") for target in TARGETS)


def fit_view(inputs: npt.NDArray[np.float32]) -> View:
    """Find the main directions of inputs, [moments, inputs].

    Arrays are rounded to half precision before use, so that a file can hold them in that.
    """
    mean = _half(inputs.mean(axis=0))
    scale = inputs.std(axis=0)
    scale = _half(np.where(scale > 1e-6, scale, 1.0))
    ready = (inputs - mean) / scale
    axes = max(1, min(AXES, len(ready) // 4, ready.shape[1]))
    directions = _half(main_directions(ready, axes))
    along = ready @ directions
    across = np.maximum((ready**2).sum(axis=1) - (along**2).sum(axis=1), 0)
    return View(
        mean=mean,
        scale=scale,
        directions=directions,
        spreads=np.maximum(along.std(axis=0), 1e-6).astype(np.float32),
        # Next to nothing left is rounding, which says nothing about what is new.
        rest=float(across.mean()) if across.mean() > 0.01 * ready.shape[1] else 0.0,
    )


def main_directions(ready: Arrays, axes: int) -> Arrays:
    """Return the first principal axes of [moments, inputs], as orthonormal columns.

    Found by block power iteration from some of the moments themselves, a few more than are asked
    for: a small part of the work of a whole decomposition, which matters with thousands of inputs.
    """
    size = min(axes + SPARE_AXES, *ready.shape)
    block = ready[np.linspace(0, len(ready) - 1, size).astype(int)].T.astype(np.float64)
    for _ in range(ITERATIONS):
        block, _ = np.linalg.qr(block)
        block = (ready.T @ (ready @ block.astype(np.float32))).astype(np.float64)
    basis, _ = np.linalg.qr(block)
    values, vectors = np.linalg.eigh(_squared(ready @ basis.astype(np.float32)))
    order = np.argsort(values)[::-1][:axes]
    order = order[values[order] > 1e-6 * max(values.max(), 1e-12)]
    return np.asarray(basis @ vectors[:, order], np.float32)


def _squared(rows: Arrays) -> Floats:
    exact = rows.astype(np.float64)
    return exact.T @ exact


def _half(array: npt.NDArray[Any]) -> Arrays:
    return np.asarray(array, np.float16).astype(np.float32)


def fit_networks(
    recipe: Recipe, coordinates: Arrays, losses: Floats, seed: int
) -> list[list[Layer]]:
    """Train a model on moments [moments, axes] and their losses [moments, n]."""
    target = TARGETS[recipe.target](losses)
    if recipe.model == "ridge":
        return [[_ridge(coordinates, target)]]
    return _ensemble(coordinates, target, seed)


def _ridge(coordinates: Arrays, target: Floats) -> Layer:
    """Ridge regression with the penalty of the least leave-one-out error, in closed form."""
    rows = coordinates.astype(np.float64)
    middle, mean = rows.mean(axis=0), target.mean()
    left, values, right = np.linalg.svd(rows - middle, full_matrices=False)
    projected = left.T @ (target - mean)
    best, weights = np.inf, np.zeros(rows.shape[1])
    for penalty in PENALTIES:
        shrunk = values**2 / (values**2 + penalty)
        # Leaving a moment out divides its residual by 1 − h; the mean takes 1/m of each h.
        leverage = (left**2 * shrunk).sum(axis=1) + 1 / len(rows)
        residual = (target - mean - left @ (shrunk * projected)) / np.maximum(1 - leverage, 1e-3)
        error = float((residual**2).mean())
        if error < best:
            best = error
            weights = right.T @ (values / (values**2 + penalty) * projected)
    return Layer(
        weights[:, None].astype(np.float32), np.array([mean - middle @ weights], np.float32)
    )


def _ensemble(coordinates: Arrays, target: Floats, seed: int) -> list[list[Layer]]:
    """Train a few networks from different random starts, each stopped where it is best."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
    except ImportError as error:
        raise MissingExtra("a network as learned proxy", extra="methods") from error
    mean, spread = target.mean(), max(float(target.std()), 1e-9)
    networks = []
    for member in range(MEMBERS):
        model = MLPRegressor(
            hidden_layer_sizes=HIDDEN,
            alpha=0.1,
            batch_size=min(max(64, len(target) // 16), int(0.8 * len(target))),
            early_stopping=True,
            validation_fraction=0.15,
            n_iter_no_change=8,
            max_iter=100,
            random_state=seed + member,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(coordinates, ((target - mean) / spread).astype(np.float32))
        layers = [
            Layer(weights.astype(np.float32), bias.astype(np.float32))
            for weights, bias in zip(model.coefs_, model.intercepts_, strict=True)
        ]
        last = layers[-1]
        layers[-1] = Layer(
            (last.weights * spread).astype(np.float32),
            (last.bias * spread + mean).astype(np.float32),
        )
        networks.append(layers)
    return networks
