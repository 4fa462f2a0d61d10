"""The input of a learned proxy: hidden layer, scores and a short history of one agent.

Everything here can be had live, from the policy alone, at every decision: no rewards, no clock, no
environment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from safemargin.policies.base import Features

LAGS = (0, 4, 8)
"""The hidden layer counts at these many steps before the decision; before the start, the first."""


def with_value(features: Features) -> npt.NDArray[np.float32]:
    """Return the hidden layer, with the value (if any) as its last column, [batch, width]."""
    if features.value is None:
        return features.hidden
    return np.concatenate([features.hidden, features.value[:, None]], axis=1)
