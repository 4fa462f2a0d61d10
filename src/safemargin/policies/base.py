"""The protocol of policies: observations in, action scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.settings import ActionChoice
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.policies.checks import check_by_probe
from safemargin.policies.observations import Observations as Observations
from safemargin.policies.observations import batch_of as batch_of
from safemargin.policies.observations import for_each as for_each

if TYPE_CHECKING:
    from safemargin.policies.proxies import Proxy

ScoreKind = Literal["q", "logits", "gaussian", "actions"]
"""What the scores of a policy mean:

q         [batch, actions]      estimated return of each action
logits    [batch, actions]      unnormalised log-probability of each action
gaussian  [batch, 2, dims]      mean and log standard deviation of each action dimension (Box)
actions   [batch, dims]         the action itself: a deterministic controller (not for Discrete)

The actions of a MultiDiscrete or MultiBinary space are all combinations of its parts, the last part
varying fastest (`joint_logits`).
"""

Memory = tuple[npt.NDArray[Any], ...] | None
"""A recurrent policy's state: arrays [batch, ...], never changed in place; None without one."""


class Features(NamedTuple):
    """Scores, with the hidden layer and the value that the network computed beside them."""

    scores: npt.NDArray[np.float32]  # [batch, actions] or as `ScoreKind` says
    memory: Memory
    hidden: npt.NDArray[np.float32]  # [batch, width] the last hidden layer; width 0 without one
    value: npt.NDArray[np.float32] | None = None  # [batch] the critic's estimate of the return


class NotNormalised(UserWarning):
    """A policy was trained on normalised observations but does not normalise them itself."""


class Policy(ABC):
    """A trained agent. Scores for one observation must not depend on its batch."""

    trained_returns: tuple[float, ...] = ()
    """Returns of its last training episodes, where the model file remembers them."""

    kind: ScoreKind
    identity: str
    """A hash of what decides the scores, e.g. 'sha256:…' over the weights."""
    description: str
    """The file or the function it came from, for people to read."""
    usual_choice: ActionChoice | None = None
    """How the agent's own library lets it act when it is watched, where that is not greedily."""
    usual_epsilon: float = 0.0
    """The probability of a random action, if that is epsilon-greedily."""
    uses_mask: bool = False
    """Whether the action choice leaves out the actions that the environment calls illegal."""

    @abstractmethod
    def scores(
        self, observations: Observations, memory: Memory = None
    ) -> tuple[npt.NDArray[np.float32], Memory]:
        """Return the scores for a batch, and the memory after it."""

    def features(self, observations: Observations, memory: Memory = None) -> Features:
        """Return the scores and, if the policy exposes them, its last hidden layer and a value."""
        scores, after = self.scores(observations, memory)
        return Features(scores, after, np.zeros((len(scores), 0), np.float32))

    def initial_memory(self, batch: int) -> Memory:
        """Return the memory at the start of an episode."""
        return None

    def widen(self, space: gym.Space[Any], rows: int) -> int:
        """Find out how many observations, up to `rows`, can be scored at once; see `batching`."""
        return 1

    def own_proxies(self) -> tuple[Proxy, ...]:
        """Return the proxies that need more than the scores, e.g. the policy's critics."""
        return ()

    def check(self, env: gym.Env[Any, Any]) -> None:
        """Raise PolicyFault if the policy cannot act in this environment."""
        check_by_probe(self, env)


def checked_kind(kind: Any, complaint: str) -> ScoreKind:
    """Return a kind of scores, or raise InvalidInput: the complaint, then a suggestion."""
    for known in get_args(ScoreKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInput(f"{complaint}; {did_you_mean(str(kind), get_args(ScoreKind))}")
