"""Spaces of actions that are chosen from scores, in one part or in several (MultiDiscrete)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from safemargin.core.records import Array

if TYPE_CHECKING:
    from safemargin.policies.base import ScoreKind

MOST_JOINT_ACTIONS = 4096
"""Scores are kept for every step, so an action in parts may have at most this many of them."""


def parts_of(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the number of choices in each part of an action; () for actions that are not chosen.

    A Discrete action is one part, a MultiBinary one is a part of two choices for each bit. A mask
    of legal actions has one entry for each choice, part after part.
    """
    if isinstance(space, Discrete):
        return (int(space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple(map(int, space.nvec.ravel()))
    if isinstance(space, MultiBinary):
        return (2,) * math.prod(space.shape)
    return ()


def action_of(space: gym.Space[Any], choices: Array) -> Any:
    """Return the action that consists of these choices, one for each part, counted from 0."""
    shaped: Any = getattr(space, "start", 0) + np.reshape(choices, space.shape or ())
    return int(shaped) if isinstance(space, Discrete) else shaped.astype(space.dtype)


def joint_actions(space: gym.Space[Any]) -> list[Any] | None:
    """Return the actions in parts in the order of their scores, as lists; None for all others."""
    parts = parts_of(space)
    if isinstance(space, Discrete) or not 0 < math.prod(parts) <= MOST_JOINT_ACTIONS or not parts:
        return None
    return [action_of(space, np.array(choices)).tolist() for choices in np.ndindex(parts)]


def scored_actions(kind: ScoreKind, space: gym.Space[Any]) -> int:
    """Return how many columns the scores of a kind have in a space that fits it."""
    return math.prod(parts_of(space) if kind in ("q", "logits") else space.shape or ())


def lacking(kind: ScoreKind, space: gym.Space[Any]) -> str | None:
    """Return what scores of this kind need instead of this space of actions; None if they fit."""
    if kind == "gaussian":
        return None if isinstance(space, Box) else "a Box action space"
    if kind == "actions":
        fits = isinstance(space, Box | MultiDiscrete | MultiBinary)
        return None if fits else "a Box, MultiDiscrete or MultiBinary action space"
    parts = parts_of(space)
    if not parts:
        return "a Discrete, MultiDiscrete or MultiBinary action space"
    if len(parts) == 1 or math.prod(parts) <= MOST_JOINT_ACTIONS:
        return None
    return (
        f"at most {MOST_JOINT_ACTIONS:,} joint actions (where there are more, return the action "
        "itself: scores of kind 'actions')"
    )


def joint_logits(parts: Sequence[Array]) -> npt.NDArray[np.float32]:
    """Return the logits of all joint actions, [batch, actions], from those of the parts.

    `parts` are [batch, choices] each; the choice of the last part varies fastest. The best choice
    of every part counts 0, so that no rounding makes another joint action look as good as the best.
    """
    shifted = [part - part.max(axis=1, keepdims=True) for part in map(np.asarray, parts)]
    joint = shifted[0]
    for part in shifted[1:]:
        joint = (joint[:, :, None] + part[:, None, :]).reshape(len(joint), -1)
    return np.asarray(joint, np.float32)
