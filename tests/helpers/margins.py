"""Margins that can be worked out by hand, and measured moments to fit them to."""

from __future__ import annotations

from typing import Any

import numpy as np

from safemargin.core.records import Floats, Tuples
from safemargin.margins.bounds.table import Bound
from safemargin.margins.lookup import Margins


def margins(**changes: Any) -> Margins:
    """Return margins that are 4, 2, 1 and 0 at the proxies 0, 1, 2 and 3, for a tolerance of 1."""
    bound = Bound(
        n_values=(1, 2, 4),
        grid=np.array([[0.0, 1.0, 2.0, 3.0]] * 3),
        upper=np.array([[0.0, 0.5, 0.9, 2.0], [0.5, 0.9, 2.0, 2.0], [0.9, 2.0, 2.0, 2.0]]),
        confidence=0.95,
        method="paper",
    )
    values: dict[str, Any] = {
        "proxy": "q_range",
        "policy": {"identity": "sha256:abc", "kind": "q", "description": "agent.onnx"},
        "environment": {"identity": "sha256:def", "name": "CartPole-v1"},
    }
    return Margins(bound, **{**values, **changes})


def scores(proxy: float) -> np.ndarray:
    """Return scores of three actions with this range."""
    return np.array([0.0, proxy, proxy / 2], dtype=np.float32)


def own_margins(**changes: Any) -> Margins:
    """Return margins for `always_first`, whose proxy is 1 + state: states 0 to 2 are measured."""
    return margins(proxy="log_prob_range", policy={"kind": "logits"}, **changes)


def measured_tuples(
    phases: np.ndarray, proxies: Floats, criticalities: Floats, **changes: Any
) -> Tuples:
    """Moments as a study hands them over, numbered within their phase, for n = 1, 2, 4, …"""
    indices = np.zeros(len(phases), dtype=np.int64)
    for phase in np.unique(phases):
        indices[phases == phase] = np.arange((phases == phase).sum())
    values: dict[str, Any] = {
        "phases": phases,
        "indices": indices,
        "lives": np.zeros(len(phases), dtype=np.int64),
        "steps": np.zeros(len(phases), dtype=np.int64),
        "proxies": proxies,
        "criticalities": criticalities,
        "half_widths": np.zeros(criticalities.shape),
        "trials": np.ones(criticalities.shape, dtype=np.int64),
        "n_values": tuple(2**column for column in range(criticalities.shape[1])),
        "proxy": "q_range",
    }
    return Tuples(**{**values, **changes})
