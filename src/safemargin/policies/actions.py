"""Random actions from uniform numbers, and a policy's action from its scores."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from safemargin.core.records import Array, Floats
from safemargin.core.settings import Settings
from safemargin.errors import EnvironmentFault, InvalidInput, PolicyFault
from safemargin.policies.action_spaces import action_of, lacking, parts_of
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
        self._parts = parts_of(space)

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
        if mask is not None and self._parts:
            return action_of(space, _legal_choices(uniforms, mask, self._parts))
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


def _legal_choices(uniforms: Floats, mask: npt.NDArray[np.bool_], parts: Sequence[int]) -> Array:
    """Return a random legal choice in each part."""
    legal = [np.flatnonzero(one) for one in np.split(mask, np.cumsum(parts)[:-1])]
    if not all(map(len, legal)):
        raise EnvironmentFault("the environment's action mask allows no action at all")
    return np.array(
        [one[int(uniform * len(one))] for uniform, one in zip(uniforms, legal, strict=True)]
    )


class PolicyActions:
    """Chooses the action of the policy under test, given its scores."""

    def __init__(self, space: gym.Space[Any], kind: ScoreKind, settings: Settings) -> None:
        self.space = space
        self.kind = kind
        self.choice = settings.action_choice
        self.epsilon = settings.epsilon
        self.random_actions = RandomActions(space)
        if (needed := lacking(kind, space)) is not None:
            raise PolicyFault(
                f"a policy with scores of kind {kind!r} needs {needed}, but the environment's is "
                f"{space}"
            )
        self._parts = parts_of(space)
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
            return self._numbered(int(np.argmax(self._only_legal(scores, mask))))
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
        logits = self._only_legal(scores.astype(np.float64), mask)
        cumulative = np.cumsum(np.exp(logits - logits.max()))
        drawn = np.searchsorted(cumulative, noise[0] * cumulative[-1], side="right")
        return self._numbered(int(drawn))

    def _only_legal(self, scores: npt.NDArray[Any], mask: Mask) -> npt.NDArray[Any]:
        if mask is None:
            return scores
        parts = np.split(mask, np.cumsum(self._parts)[:-1])
        return np.where(functools.reduce(np.logical_and.outer, parts).ravel(), scores, -np.inf)

    def _numbered(self, number: int) -> Any:
        """Return the action that a score belongs to."""
        if isinstance(self.space, Discrete):
            return int(self.space.start) + number
        return action_of(self.space, np.array(np.unravel_index(number, self._parts)))

    def _clip(self, action: npt.NDArray[Any]) -> Any:
        space = self.space
        if self._parts:
            return self._whole(action)
        shaped = action.reshape(space.shape)
        clipped = np.clip(shaped, space.low, space.high)  # type: ignore[attr-defined]
        return np.asarray(clipped, dtype=space.dtype)

    def _whole(self, action: npt.NDArray[Any]) -> Any:
        """Return the choices that a controller named, or raise PolicyFault if there are none."""
        first: Any = getattr(self.space, "start", 0)
        found = np.reshape(action, self.space.shape or ()) - first
        chosen = found.astype(np.int64)
        if not (chosen == found).all() or not self.space.contains(action_of(self.space, chosen)):
            raise PolicyFault(
                f"the policy's action {action.tolist()} is none of {self.space}; return whole "
                "numbers within its bounds"
            )
        return action_of(self.space, chosen)
