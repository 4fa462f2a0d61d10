"""The proxies of agents whose scores are actions, computed from their critics' Q values.

An actor-critic agent like SAC has no scores over actions, but its critics estimate what an action
is worth. The proxies are how much better the agent's own action is than random ones, and how far
the critics disagree about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, stream
from safemargin.policies.actions import RandomActions
from safemargin.policies.proxies import CRITIC_PROXIES, Proxy

RANDOM_ACTIONS = 32
"""The agent's own action is compared with this many random ones, the same at every step."""


class Critics:
    """Computes proxies from critics: `values(observation, actions)` returns [actions, critics]."""

    def __init__(
        self, values: Callable[[Any, npt.NDArray[np.float32]], npt.NDArray[Any]], space: Box
    ) -> None:
        self._values = values
        random = RandomActions(space)
        uniforms = stream(0, Purpose.CRITIC_ACTIONS).random((RANDOM_ACTIONS, random.width))
        self.random_actions = np.stack([random(row).ravel() for row in uniforms])  # [actions, dims]

    def proxies(self, critics: int) -> tuple[Proxy, ...]:
        """Return the proxies of an agent with this many critics; disagreement takes two."""
        advantage = replace(CRITIC_PROXIES["critic_advantage"], function=self.advantage)
        disagreement = replace(CRITIC_PROXIES["critic_disagreement"], function=self.disagreement)
        return (advantage, disagreement)[: 1 if critics < 2 else 2]

    def advantage(self, own: Floats, history: Sequence[Any], n: None = None) -> float:
        """Return Q of the agent's own action − mean Q of random ones; Q is the critics' mean."""
        actions = np.concatenate([own[np.newaxis], self.random_actions], dtype=np.float32)
        values = self._values(history[-1], actions).mean(axis=1, dtype=np.float64)
        return float(values[0] - values[1:].mean())

    def disagreement(self, own: Floats, history: Sequence[Any], n: None = None) -> float:
        """Return the highest − the lowest of the critics' Q of the agent's own action."""
        values = self._values(history[-1], own[np.newaxis].astype(np.float32))
        return float(np.ptp(values.astype(np.float64)))
