"""Cheap signs that a policy may be wrong, where it estimates the return: its own surprises.

Both look back: what they say at a step is known when the policy acts there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.policies.base import ScoreKind
from safemargin.policies.proxies import log_softmax

TD_RESIDUAL, POLICY_VALUE = "td_residual", "policy_value"
SIGNALS = (TD_RESIDUAL, POLICY_VALUE)


def value_signals(
    kind: ScoreKind,
    scores: npt.NDArray[np.float32],  # [steps, …]
    values: Floats | None,  # [steps] the critic's estimate of the return
    rewards: Floats,  # [steps]
    gamma: float,
) -> dict[str, Floats]:
    """Return what can be computed along an episode: name → [steps].

    - `td_residual`: |r + γ V(now) − V(before)|, the surprise of the step before. For scores that
      are Q values, V is the highest.
    - `policy_value`: how sure the policy is of its action while its value falls: the highest
      probability times max(0, V(before) − r − γ V(now)). For policies with probabilities.
    """
    if kind == "q":
        values = scores.max(axis=-1).astype(np.float64)
    if values is None:
        return {}
    surprise = np.zeros(len(values))
    surprise[1:] = rewards[:-1] + gamma * values[1:] - values[:-1]
    found = {TD_RESIDUAL: np.abs(surprise)}
    if kind == "logits":
        sure = np.exp(log_softmax(scores.astype(np.float64)).max(axis=-1))
        found[POLICY_VALUE] = sure * np.maximum(-surprise, 0.0)
    return found
