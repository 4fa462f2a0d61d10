"""A model of an episode's return that says which steps matter for it, after Guo et al. 2021 (EDGE).

The idea is theirs: predict the return of a whole episode from what happened at its steps, and read
off how much each step contributes. The model here is additive, so that a contribution needs no
attention weights: return ≈ b + Σ_t w · φ(t), where φ(t) are the scores of step t, their short
history, and the squares of both, less their mean over all steps. The importance of a step is
|w · φ(t)|: how far it moves the predicted return, up or down. Every episode gets its importance
from a ridge regression that has not seen the episode, or a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import EpisodeKey, Floats
from safemargin.errors import StudyIncomplete
from safemargin.margins.learned.probe import EXPLANATIONS
from safemargin.policies.features import inputs_along
from safemargin.study.grouping import group_labels
from safemargin.study.store import Store

FEWEST = 20
"""Fewer distinct episodes than this teach a model nothing."""

FOLDS = 5
PENALTIES = tuple(10.0**power for power in range(-2, 6))


@dataclass(frozen=True, slots=True)
class ReturnModel:
    """What came of learning the return of episodes."""

    episodes: int
    plays: int
    """Episodes that are no copies of one another."""
    correlation: float
    """Of returns and those that models predict which have not seen the episode."""
    proxy: str
    """What its importance of steps is called along the episodes."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"returns of unseen episodes correlate {self.correlation:.2f} with the predicted ones "
            f"({self.plays:,} plays); the importance of each step is recorded as {self.proxy!r}"
        )


def learn_return(store: Store, progress: Progress | None = None) -> ReturnModel:
    """Learn the return of episodes, and record the importance of every step along all of them."""
    progress, proxy = progress or Silence(), EXPLANATIONS["return"]
    keys = list(store.episode_outlines())
    labels = group_labels(store, keys)
    plays = np.unique(labels)
    returns = np.array([float(store.rewards(key).sum()) for key in keys])
    if len(plays) < FEWEST:
        raise StudyIncomplete(
            f"a model of returns takes at least {FEWEST} distinct episodes, and the study in "
            f"{store.folder} has {len(plays)}; collect more, or a study with a random --opening"
        )
    if np.ptp(returns) == 0:
        raise StudyIncomplete(
            f"all episodes of the study in {store.folder} have the same return ({returns[0]:g}), "
            "so a model of it would have nothing to learn"
        )
    with store.writing():
        predicted = _record(store, keys, labels, returns, progress)
    spread = predicted.std() > 0
    found = float(np.corrcoef(predicted, returns)[0, 1]) if spread else 0.0
    return ReturnModel(len(keys), len(plays), found, proxy)


def _record(
    store: Store,
    keys: Sequence[EpisodeKey],
    labels: npt.NDArray[np.int64],
    returns: Floats,
    progress: Progress,
) -> Floats:
    """Record the importance of every step; return the predicted return of each episode."""
    progress.stage("return model", total=2 * len(keys), done=0)
    kind, proxy = store.meta("policy")["kind"], EXPLANATIONS["return"]
    center, scale = _moments(store, keys, kind)
    sums = np.empty((len(keys), len(center)))
    for row, key in enumerate(keys):
        sums[row] = ((_inputs(store, key, kind) - center) / scale).sum(axis=0)
        progress.advance(0)
    folds = np.searchsorted(np.unique(labels), labels) % FOLDS
    models = [_ridge(sums[folds != fold], returns[folds != fold]) for fold in range(FOLDS)]
    store.drop_trace(proxy)
    for row, key in enumerate(keys):
        weights = models[folds[row]][1]
        store.add_trace(key, proxy, np.abs((_inputs(store, key, kind) - center) / scale @ weights))
        progress.advance(0)
    return np.array(
        [models[fold][0] + sums[row] @ models[fold][1] for row, fold in enumerate(folds)]
    )


def _inputs(store: Store, key: EpisodeKey, kind: Any) -> Floats:
    """Return what the model sees of each step, [steps, inputs]."""
    scores = store.scores(key)
    seen = inputs_along(kind, scores, np.empty((len(scores), 0), np.float32)).astype(np.float64)
    return np.concatenate([seen, seen**2], axis=1)


def _moments(store: Store, keys: Sequence[EpisodeKey], kind: Any) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the inputs over all steps."""
    count, total, squares = 0, 0.0, 0.0
    for key in keys:
        inputs = _inputs(store, key, kind)
        count += len(inputs)
        total, squares = total + inputs.sum(axis=0), squares + (inputs**2).sum(axis=0)
    mean = np.asarray(total) / count
    deviation = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 0))
    return mean, np.where(deviation > 1e-9, deviation, 1.0)


def _ridge(inputs: Floats, targets: Floats) -> tuple[float, Floats]:
    """Fit intercept and weights; the penalty is the best by leaving one episode out."""
    center, mean = inputs.mean(axis=0), float(targets.mean())
    left, values, right = np.linalg.svd(inputs - center, full_matrices=False)
    rotated, errors = left.T @ (targets - mean), []
    for penalty in PENALTIES:
        shrink = values**2 / (values**2 + penalty)
        rest = targets - mean - left @ (shrink * rotated)
        own = (left**2) @ shrink + 1 / len(targets)  # how much each target weighs in its own fit
        errors.append(float(((rest / np.maximum(1 - own, 1e-6)) ** 2).mean()))
    best = PENALTIES[int(np.argmin(errors))]
    weights = right.T @ (values / (values**2 + best) * rotated)
    return mean - float(center @ weights), weights
