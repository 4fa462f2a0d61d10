"""Checks that scores and spaces are what a policy's kind promises."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, PolicyFault, errors_as
from safemargin.policies.action_spaces import lacking, scored_actions
from safemargin.policies.observations import batch_of

if TYPE_CHECKING:
    from safemargin.policies.base import Policy, ScoreKind
    from safemargin.policies.observations import Observations

SHAPES: dict[str, str] = {
    "q": "[batch, actions]",
    "logits": "[batch, actions]",
    "gaussian": "[batch, 2, dimensions]",
    "actions": "[batch, dimensions]",
}


def checked_scores(
    raw: Any, *, kind: ScoreKind, batch: int, description: str
) -> npt.NDArray[np.float32]:
    """Return finite float32 scores in the shape of their kind, or raise PolicyFault."""
    try:
        with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused below
            scores = np.asarray(raw, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise PolicyFault(
            f"policy {description}: expected {kind} scores {SHAPES[kind]}, "
            f"got {type(raw).__name__} that is not an array of numbers ({error})"
        ) from error
    well_formed = (
        scores.ndim == (3 if kind == "gaussian" else 2)
        and scores.shape[0] == batch
        and scores.shape[-1] > 0
        and (kind != "gaussian" or scores.shape[1] == 2)
    )
    if not well_formed:
        raise PolicyFault(
            f"policy {description}: expected {kind} scores {SHAPES[kind]} for a batch of {batch}, "
            f"got shape {list(scores.shape)}"
        )
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).reshape(batch, -1).all(axis=1)))
        raise PolicyFault(
            f"policy {description}: scores must be finite numbers, "
            f"got {scores[row].tolist()} (row {row} of the batch)"
        )
    return scores


def same_kind(found: ScoreKind, asked: ScoreKind | None, description: str) -> ScoreKind:
    """Return the kind of scores that a model gives, or refuse another that was asked for."""
    if asked not in (None, found):
        raise InvalidInput(
            f"policy {description}: the model gives scores of kind {found!r}, not {asked!r}"
        )
    return found


def sample_batch(space: gym.Space[Any], batch: int = 1, *, seed: int = 0) -> Observations:
    """Draw observations of a space without touching the space's own random generator."""
    own = copy.deepcopy(space)
    own.seed(seed)
    samples = [own.sample() for _ in range(batch)]
    try:
        return batch_of(samples)
    except ValueError as error:
        raise PolicyFault(
            f"observations of {space} form no array; flatten them "
            "(gymnasium.wrappers.FlattenObservation)"
        ) from error


def check_observation_space(
    description: str,
    space: gym.Space[Any],
    *,
    shape: tuple[int | None, ...],
    dtype: np.dtype[Any],
) -> None:
    """Compare an environment's observations with what the policy takes; None means any size."""
    got = space.shape
    fits = (
        got is not None
        and len(got) == len(shape)
        and all(wanted in (None, size) for wanted, size in zip(shape, got, strict=True))
    )
    if not fits:
        expected = ["any" if size is None else size for size in shape]
        raise PolicyFault(
            f"policy {description}: expected observations of shape {expected}, "
            f"got {_shape_text(space)} from the environment"
        )
    if space.dtype is not None and not np.can_cast(space.dtype, dtype, "same_kind"):
        raise PolicyFault(
            f"policy {description}: expected observations of type {dtype}, "
            f"got {space.dtype} from the environment"
        )


def check_action_space(policy: Policy, space: gym.Space[Any], scored: int | None = None) -> None:
    """Compare an environment's actions with the policy's kind and number of scores."""
    name = f"policy {policy.description}"
    if (needed := lacking(policy.kind, space)) is not None:
        raise PolicyFault(
            f"{name}: {policy.kind} scores need {needed}, got {_shape_text(space)} from the "
            "environment"
        )
    found = scored_actions(policy.kind, space)
    if scored not in (None, found):
        chosen = policy.kind in ("q", "logits")
        wanted = "actions, one for each score" if chosen else "action dimensions"
        raise PolicyFault(f"{name}: expected an environment with {scored} {wanted}, got {found}")


def check_by_probe(policy: Policy, env: gym.Env[Any, Any]) -> None:
    """Score one sample observation and compare the scores with the action space.

    A rule that is written for what the environment shows may not take what its space allows, so the
    first observation of an episode is tried, too, before the policy is refused.
    """
    check_action_space(policy, env.action_space)
    failure = (
        f"policy {policy.description}: cannot score an observation of "
        f"{_shape_text(env.observation_space)}:"
    )

    def ask(observations: Observations) -> Any:
        with errors_as(PolicyFault, failure):
            return policy.scores(observations, policy.initial_memory(1))[0]

    try:
        scores = ask(sample_batch(env.observation_space))
    except PolicyFault as refused:
        try:
            first = batch_of([env.reset(seed=0)[0]])
        except Exception:  # noqa: BLE001 — there is no such observation
            raise refused from None
        scores = ask(first)
    scores = checked_scores(scores, kind=policy.kind, batch=1, description=policy.description)
    check_action_space(policy, env.action_space, int(scores.shape[-1]))


def _shape_text(space: gym.Space[Any]) -> str:
    """Describe a space in an error message: 'Box of shape [4]', 'Discrete(6)'."""
    if isinstance(space, gym.spaces.Box):
        return f"Box of shape {list(space.shape)}"
    if isinstance(space, gym.spaces.Dict):
        return "Dict of " + ", ".join(space.spaces)
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple of {len(space.spaces)} parts"
    return str(space)
