"""Random actions from uniform numbers, and a policy's action from its scores."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.errors import EnvironmentFault, InvalidInput, PolicyFault
from safemargin.policies.base import ScoreKind

Mask = npt.NDArray[np.bool_] | None


class RandomActions:
    """Uniformly random actions of one action space, each made from `width` numbers in [0, 1).

    Uniform numbers let the same stream be used under any mask of legal actions.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        if not isinstance(space, Discrete | MultiDiscrete | MultiBinary | Box):
            raise InvalidInput(
                f"random actions are defined for Discrete, MultiDiscrete, MultiBinary and Box "
                f"action spaces, not for {type(space).__name__}; flatten the action space first"
            )
        if isinstance(space, Box) and not np.isfinite([space.low, space.high]).all():
            raise InvalidInput(
                f"the action space {space} has no bounds, so no action of it is uniformly "
                "random; give it a space with bounds (gymnasium.wrappers.TransformAction)"
            )
        self.width = int(np.prod(space.shape or ()))

    def __call__(self, uniforms: npt.NDArray[np.float64], mask: Mask = None) -> Any:
        """Return the action for `width` uniform numbers; with a mask, one of the legal actions."""
        space = self.space
        if isinstance(space, Discrete):
            if mask is None:
                return int(space.start) + int(uniforms[0] * space.n)
            legal = np.flatnonzero(mask)
            if len(legal) == 0:
                raise EnvironmentFault("the environment's action mask allows no action at all")
            return int(space.start + legal[int(uniforms[0] * len(legal))])
        shaped = uniforms.reshape(space.shape)
        if isinstance(space, Box) and space.dtype.kind in "iub":
            low = space.low.astype(np.uint64)  # modulo 2⁶⁴, where differences are right, too
            last = space.high.astype(np.uint64) - low
            drawn = np.minimum((shaped * (last + 1.0)).astype(np.uint64), last)
            return (low + drawn).astype(space.dtype)
        if isinstance(space, Box):
            span = space.high.astype(np.float64) - space.low
            return (space.low + shaped * span).astype(space.dtype)
        if isinstance(space, MultiDiscrete):
            return (space.start + np.floor(shaped * space.nvec)).astype(space.dtype)
        return (shaped >= 0.5).astype(space.dtype)


class PolicyActions:
    """Chooses the action of the policy under test, given its scores."""

    def __init__(self, space: gym.Space[Any], kind: ScoreKind, settings: Settings) -> None:
        self.space = space
        self.kind = kind
        self.choice = settings.action_choice
        self.epsilon = settings.epsilon
        self.random_actions = RandomActions(space)
        needed = Discrete if kind in ("q", "logits") else Box
        if not isinstance(space, needed):
            raise PolicyFault(
                f"a policy with scores of kind {kind!r} needs a {needed.__name__} action space, "
                f"but the environment's is {space}"
            )
        if self.choice == "sampled" and kind in ("q", "actions"):
            raise InvalidInput(
                f"action_choice='sampled' needs probabilities, which scores of kind {kind!r} "
                "do not give; use 'greedy' or 'epsilon-greedy'"
            )

    @property
    def deterministic(self) -> bool:
        """Whether equal scores always give the same action."""
        return self.choice == "greedy" or (self.choice == "epsilon-greedy" and self.epsilon == 0)

    def __call__(
        self,
        scores: npt.NDArray[np.float32],  # one row: [actions], [2, dimensions] or [dimensions]
        generator: np.random.Generator | None = None,
        mask: Mask = None,
    ) -> Any:
        """Return the chosen action; a generator is needed unless the choice is deterministic."""
        noise = self.draw(generator)
        if noise is not None and self.choice == "sampled":
            return self._sample(scores, noise, mask)
        if noise is not None:
            return self.random_actions(noise, mask)
        if self.kind in ("q", "logits"):
            if mask is not None:
                scores = np.where(mask, scores, -np.inf)
            return int(self.space.start) + int(np.argmax(scores))  # type: ignore[attr-defined]
        return self._clip(scores[0] if self.kind == "gaussian" else scores)

    def draw(self, generator: np.random.Generator | None) -> Floats | None:
        """Draw the random numbers of one choice, whatever the scores; None: it needs none."""
        if self.deterministic:
            return None
        if generator is None:
            raise InvalidInput("a random action choice needs a random generator")
        if self.choice == "sampled":
            if self.kind == "gaussian":
                return generator.standard_normal(self.random_actions.width)
            return generator.random(1)
        if generator.random() < self.epsilon:
            return generator.random(self.random_actions.width)
        return None

    def _sample(self, scores: npt.NDArray[np.float32], noise: Floats, mask: Mask) -> Any:
        if self.kind == "gaussian":
            mean, log_deviation = scores.astype(np.float64)
            return self._clip(mean + np.exp(log_deviation) * noise.reshape(mean.shape))
        logits = scores.astype(np.float64)
        if mask is not None:
            logits = np.where(mask, logits, -np.inf)
        cumulative = np.cumsum(np.exp(logits - logits.max()))
        drawn = np.searchsorted(cumulative, noise[0] * cumulative[-1], side="right")
        return int(self.space.start) + int(drawn)  # type: ignore[attr-defined]

    def _clip(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        space = self.space
        shaped = action.reshape(space.shape)
        clipped = np.clip(shaped, space.low, space.high)  # type: ignore[attr-defined]
        return np.asarray(clipped, dtype=space.dtype)
