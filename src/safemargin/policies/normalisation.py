"""Frozen VecNormalize statistics: a Stable-Baselines3 policy sees what it was trained on.

A statistics file is a pickle. It is loaded by Stable-Baselines3, and only if the user names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.errors import InvalidInput, MissingExtra, errors_as
from safemargin.policies.base import Observations
from safemargin.policies.identity import weights_identity
from safemargin.policies.loading import NO_STATISTICS

try:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
except ImportError as error:
    raise MissingExtra("a Stable-Baselines3 model", extra="sb3") from error


class Normalisation:
    """Normalises observations as VecNormalize did at the end of training; never learns."""

    def __init__(self, statistics: VecNormalize) -> None:
        moments: dict[str, Any] = {}
        if statistics.norm_obs:
            given = statistics.obs_rms
            moments = dict(given) if isinstance(given, dict) else {"": given}
        self._statistics = {
            key: (np.array(each.mean), np.array(each.var)) for key, each in moments.items()
        }
        self._epsilon = float(statistics.epsilon)
        self._clip = float(statistics.clip_obs)

    @property
    def changes_nothing(self) -> bool:
        """Whether only rewards were normalised in training."""
        return not self._statistics

    def __call__(self, observations: Observations) -> Any:
        """Return normalised copies of a batch of observations."""
        if isinstance(observations, dict):
            return {key: self._normalised(key, values) for key, values in observations.items()}
        return self._normalised("", observations)

    def _normalised(self, key: str, values: Any) -> Any:
        if key not in self._statistics:
            return values
        mean, variance = self._statistics[key]
        scaled = (values - mean) / np.sqrt(variance + self._epsilon)
        return np.clip(scaled, -self._clip, self._clip).astype(np.float32)

    def identity(self, of_weights: str) -> str:
        """Return the hash of the policy with these weights behind this normalisation."""
        arrays = {
            f"{key}.{name}": array
            for key, pair in self._statistics.items()
            for name, array in zip(("mean", "var"), pair, strict=True)
        }
        constants = f"VecNormalize epsilon={self._epsilon!r} clip={self._clip!r}"
        return weights_identity([of_weights, constants], arrays)


def load_normalisation(path: Path, spaces: Any, description: str) -> Normalisation:
    """Load statistics from a file that `VecNormalize.save` wrote (this unpickles it).

    `spaces` is the model or the environment whose observations they normalise.
    """
    if not path.is_file():
        raise InvalidInput(f"policy {description}: there is no statistics file {path}")
    failure = (
        f"policy {description}: {path} cannot be used as the VecNormalize statistics of a "
        f"policy that takes {spaces.observation_space}:"
    )
    with errors_as(InvalidInput, failure):
        statistics = VecNormalize.load(str(path), DummyVecEnv([lambda: _OnlySpaces(spaces)]))
    if not isinstance(statistics, VecNormalize):
        raise InvalidInput(
            f"policy {description}: {path} holds a {type(statistics).__name__}, not the statistics "
            "that VecNormalize.save writes"
        )
    return Normalisation(statistics)


def refuse_forgotten(path: Path) -> None:
    """Raise InvalidInput if VecNormalize statistics lie near a model file and were not named."""
    found = sorted([*path.parent.glob("*normalize*.pkl"), *path.parent.glob("*/*normalize*.pkl")])
    if found:
        raise InvalidInput(
            f"policy {path}: {found[0]} lies beside it, so it was probably trained under "
            f"VecNormalize and would act differently without it; add --normalize {found[0]} "
            f"(in Python: normalize={str(found[0])!r}) if that file belongs to it, or "
            f"--normalize {NO_STATISTICS} if it was trained without"
        )


class _OnlySpaces(gym.Env[Any, Any]):
    """An environment that VecNormalize compares its shapes with, and that nobody runs."""

    def __init__(self, spaces: Any) -> None:
        self.observation_space: gym.Space[Any] = spaces.observation_space
        self.action_space: gym.Space[Any] = spaces.action_space
