"""The input of a learned proxy: hidden layer, scores and a short history of one agent.

All of it is available live, at every decision, from the policy alone: it needs no rewards, no clock
and no environment. The same functions build it from a recorded episode and, with `History`, live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.policies.proxies import log_softmax

if TYPE_CHECKING:
    from safemargin.policies.base import Features, ScoreKind

LAGS = (0, 4, 8)
"""The hidden layer is used this many steps before the decision; before the start, the first one."""

WINDOW = 16
"""Scores are used over this many steps before the decision."""

PARTS = ("scores", "history", "hidden")
"""The parts of an input, in this order."""


def with_value(features: Features) -> npt.NDArray[np.float32]:
    """Return the hidden layer, with the value (if any) as its last column, [batch, width]."""
    if features.value is None:
        return features.hidden
    return np.concatenate([features.hidden, features.value[:, None]], axis=1)


def recent(rows: npt.NDArray[Any], step: int) -> npt.NDArray[Any]:
    """Return the rows of the last `WINDOW` steps and of this one, [WINDOW + 1, …], oldest first.

    Before the start of the episode, its first row is repeated.
    """
    return np.asarray(rows[np.maximum(np.arange(step - WINDOW, step + 1), 0)])


def inputs_along(
    kind: ScoreKind,
    scores: npt.NDArray[np.float32],  # [steps, …] of a whole episode
    hidden: npt.NDArray[np.float32],  # [steps, width]
) -> npt.NDArray[np.float32]:
    """Return what a learned proxy sees at every step of an episode, [steps, inputs]."""
    steps = np.arange(len(scores))
    before = np.maximum(steps[:, None] - np.arange(WINDOW, -1, -1), 0)
    return probe_inputs(kind, scores[before], hidden[np.maximum(steps[:, None] - LAGS, 0)])


def probe_inputs(
    kind: ScoreKind,
    scores: npt.NDArray[np.float32],  # [moments, WINDOW + 1, …] oldest first
    hidden: npt.NDArray[np.float32],  # [moments, lags, width]
    parts: Sequence[str] = PARTS,
) -> npt.NDArray[np.float32]:
    """Return what a learned proxy sees at each moment, [moments, inputs]."""
    exact = np.asarray(scores, np.float64)
    return _join(_plain(kind, exact[:, -1]), _summaries(kind, exact), hidden, parts)


def _join(
    scores: Floats,  # [moments, numbers]
    series: Floats,  # [moments, WINDOW + 1, numbers] summaries of the scores, oldest first
    hidden: npt.NDArray[np.float32],  # [moments, lags, width]
    parts: Sequence[str] = PARTS,
) -> npt.NDArray[np.float32]:
    """Return the parts of the inputs side by side, [moments, inputs]."""
    now: dict[str, npt.NDArray[Any]] = {
        "scores": scores,
        "hidden": hidden.reshape(len(hidden), -1),
    }
    now["history"] = np.concatenate(
        [series[:, -1], *(series[:, -1 - lag] for lag in LAGS[1:])]
        # Plain reductions: NumPy's functions take twice as long for so few numbers.
        + [np.add.reduce(series, axis=1) / series.shape[1]]
        + [of.reduce(series, axis=1) for of in (np.minimum, np.maximum)],
        axis=1,
    )
    return np.concatenate([now[part] for part in PARTS if part in parts], axis=1, dtype=np.float32)


def _plain(kind: ScoreKind, scores: Floats) -> Floats:
    """Return the scores of one step without what the action choice ignores, [moments, numbers]."""
    if kind == "q":
        mean = scores.mean(axis=-1, keepdims=True)
        return np.concatenate([scores - mean, mean], axis=-1)
    if kind == "logits":
        return np.maximum(log_softmax(scores), -50.0)
    return scores.reshape(len(scores), -1)


def _summaries(kind: ScoreKind, scores: Floats) -> Floats:
    """Summarise the scores of each step in a few numbers, [moments, steps, numbers]."""
    if kind == "gaussian":
        mean, log_deviation = scores[..., 0, :], scores[..., 1, :]
        every = [log_deviation.sum(axis=-1), np.abs(mean).mean(axis=-1)]
    elif kind == "actions":
        every = [np.abs(scores).mean(axis=-1), np.abs(scores).max(axis=-1)]
    else:
        ordered = np.sort(scores, axis=-1)
        probability = np.exp(log_softmax(scores))
        every = [
            ordered[..., -1] - ordered[..., 0],
            ordered[..., -1] - ordered.mean(axis=-1),
            ordered[..., -1] - ordered[..., max(-2, -ordered.shape[-1])],
            (probability**2).sum(axis=-1) if kind == "logits" else ordered[..., -1],
        ]
    return np.stack(every, axis=-1)


class History:
    """Keeps what a learned proxy looks back on: summaries of scores, and hidden layers."""

    def __init__(self, kind: ScoreKind, agents: int) -> None:
        self.kind = kind
        self._agents = agents
        self._series: Floats | None = None  # [agents, WINDOW + 1, numbers]
        self._hidden: npt.NDArray[np.float32] | None = None  # [agents, max lag + 1, width]
        self._at = 0
        """Where the latest hidden layers stand; those before it stand before it, in a ring."""
        self._fresh = np.ones(agents, dtype=bool)
        """Marks the agents whose next step is the first of an episode, [agents]."""
        self._begins = True
        """Whether there are any."""

    def add(
        self,
        scores: npt.NDArray[Any],  # [agents, …]
        hidden: npt.NDArray[Any],  # [agents, width]
    ) -> npt.NDArray[np.float32]:
        """Remember one step's scores and hidden layers; return the inputs, [agents, inputs]."""
        exact = np.asarray(scores, np.float32).astype(np.float64)
        summary = _summaries(self.kind, exact[:, None])[:, 0]
        if self._series is None or self._hidden is None:
            self._series = np.zeros((self._agents, WINDOW + 1, summary.shape[1]))
            self._hidden = np.zeros((self._agents, LAGS[-1] + 1, hidden.shape[1]), np.float32)
        size = LAGS[-1] + 1
        self._at = (self._at + 1) % size
        self._series[:, :-1] = self._series[:, 1:]
        self._series[:, -1] = summary
        self._hidden[:, self._at] = hidden
        if self._begins:
            self._series[self._fresh] = self._series[self._fresh, -1:]
            self._hidden[self._fresh] = self._hidden[self._fresh, self._at][:, None]
            self._fresh[:] = self._begins = False
        lagged = self._hidden[:, [(self._at - lag) % size for lag in LAGS]]
        return _join(_plain(self.kind, exact), self._series, lagged)

    def forget(self, agents: Sequence[int]) -> None:
        """Clear the history of these agents: their next step is the first of an episode."""
        self._fresh[list(agents)] = True
        self._begins = bool(self._fresh.any())
