"""The frozen records that the stages of a study hand to one another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

Phase = Literal["natural", "spread"]
PHASES: tuple[Phase, ...] = ("natural", "spread")
"""In this order; the position is part of every random stream's key."""


@dataclass(frozen=True, slots=True, order=True)
class EpisodeKey:
    """Which episode of a study: its phase and its number within the phase."""

    phase: Phase
    index: int

    @property
    def stream_keys(self) -> tuple[int, int]:
        """What an episode's random streams are keyed by."""
        return PHASES.index(self.phase), self.index

    def __str__(self) -> str:
        return f"{self.phase} {self.index}"


@dataclass(frozen=True, slots=True)
class Episode:
    """One run under the policy, from reset to end."""

    key: EpisodeKey
    seed: int
    """What the environment was reset with."""
    opening: int
    """The first so many actions were random (a different start), not the policy's."""
    actions: Array  # [steps] or [steps, dimensions]
    rewards: Floats  # [steps]
    scores: npt.NDArray[np.float32]  # [steps, actions]
    proxies: Mapping[str, Floats]  # name → [steps], or [steps, n] where the proxy looks at n
    terminated: bool
    truncated: bool
    """Ended by the environment's own time limit."""
    cut: bool
    """Ended by `max_episode_steps`: what would have followed is unknown."""

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def fingerprint(self) -> str:
        """Equal for episodes that are copies of one another."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(np.ascontiguousarray(self.actions[self.opening :]).tobytes())
        digest.update(self.rewards[self.opening :].tobytes())
        digest.update(self.scores[self.opening :].tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Moment:
    """One (episode, step) chosen for measuring."""

    episode: EpisodeKey
    step: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The true criticality c*(t, n) of one moment (Algorithm 1)."""

    n: int
    mean: float
    """Expected loss of discounted reward, in the environment's reward units."""
    half_width: float
    """The true value lies within mean ± half_width with the settings' confidence α."""
    trials: int
    exact: bool
    """Every perturbed sequence was taken once: no sampling error."""
    unperturbed: float
    """The (mean) discounted return without perturbation."""
    capped: bool = False
    """`max_trials` was reached before the half-width was small enough."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """An estimate and the returns it was made from."""

    estimate: Estimate
    perturbed: Floats  # [trials]
    unperturbed: Floats  # [1] when all is deterministic, else [trials]
    steps: int
    """Simulator steps spent."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """The measured moments of a study as arrays: what a fit needs."""

    phases: npt.NDArray[np.str_]  # [moments]
    indices: npt.NDArray[np.int64]  # [moments] episode number within the phase
    steps: npt.NDArray[np.int64]  # [moments]
    proxies: Floats  # [moments], or [moments, n] where the proxy looks at n
    criticalities: Floats  # [moments, n]
    half_widths: Floats  # [moments, n]
    trials: npt.NDArray[np.int64]  # [moments, n]
    n_values: tuple[int, ...]
    proxy: str

    def __len__(self) -> int:
        return len(self.steps)
