"""The frozen records that the stages of a study pass to one another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, MissingExtra

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

Phase = Literal["natural", "spread"]
PHASES: tuple[Phase, ...] = ("natural", "spread")
"""The order matters: the position is part of every random stream's key."""


def episode_id(phase: str, index: int, life: int) -> str:
    """Return an episode's name for addresses and files, lives counted from 0: 'natural-17-1'."""
    return f"{phase}-{index}-{life}"


def episode_title(phase: str, index: int, life: int, *, has_lives: bool) -> str:
    """Return an episode's name for people, lives counted from 1: 'natural 17, life 2'.

    Where games have no lives, it is plainly 'natural 17'.
    """
    return f"{phase} {index}" + (f", life {life + 1}" if has_lives else "")


@dataclass(frozen=True, slots=True, order=True)
class EpisodeKey:
    """Which episode of a study: its phase, its number within the phase, and which life.

    Where an environment ends an episode with each life of a game (`atari:GAME`), the lives of one
    game share the number and the start; elsewhere there is only life 0.
    """

    phase: Phase
    index: int
    life: int = 0

    @property
    def game_keys(self) -> tuple[int, int]:
        """The keys of the random stream for the start, which all lives share."""
        return PHASES.index(self.phase), self.index

    @property
    def stream_keys(self) -> tuple[int, int, int]:
        """The keys of the episode's own random streams."""
        return *self.game_keys, self.life

    @property
    def row(self) -> tuple[Phase, int, int]:
        """Its fields, as tables hold them."""
        return self.phase, self.index, self.life

    @property
    def id(self) -> str:
        """The name for addresses and file names; see `episode_id`."""
        return episode_id(self.phase, self.index, self.life)

    def title(self, *, has_lives: bool) -> str:
        """Return the name for people; see `episode_title`."""
        return episode_title(self.phase, self.index, self.life, has_lives=has_lives)

    def __str__(self) -> str:
        return self.title(has_lives=self.life > 0)


@dataclass(frozen=True, slots=True)
class Episode:
    """One run under the policy, from reset to end."""

    key: EpisodeKey
    seed: int
    """The seed that the environment was reset with."""
    opening: int
    """This many first actions were random (for a different start), not the policy's."""
    actions: Array  # [steps] or [steps, dimensions]
    rewards: Floats  # [steps]
    scores: npt.NDArray[np.float32]  # [steps, actions]
    proxies: Mapping[str, Floats]  # name → [steps], or [steps, n] where the proxy looks at n
    terminated: bool
    truncated: bool
    """Ended by the environment's own time limit."""
    cut: bool
    """Ended by `max_episode_steps`: what would have followed is unknown."""
    drew: bool = False
    """Whether the environment drew random numbers; known only for an episode that was just run."""

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def ended(self) -> str:
        """How it ended: 'cut', 'terminated' or 'truncated'."""
        return "cut" if self.cut else "terminated" if self.terminated else "truncated"

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


@dataclass(frozen=True, slots=True, eq=False)
class MomentFeatures:
    """The policy's last hidden layer at a moment, and a few steps before it."""

    moment: Moment
    hidden: npt.NDArray[np.float32]  # [lags, width] the last hidden layer, then a value if any


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeFeatures:
    """The policy's last hidden layer at every step of an episode."""

    key: EpisodeKey
    hidden: npt.NDArray[np.float32]  # [steps, width]


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
    """An estimate and the returns it was computed from."""

    estimate: Estimate
    perturbed: Floats  # [trials]
    unperturbed: Floats  # [1] when all is deterministic, else [trials]
    steps: int
    """Simulator steps spent."""
    wasted: int = 0
    """How many of them were spent on speculative trials that were discarded."""
    remembered: int = 0
    """States kept to recognise rollouts that meet; the same for every n of a moment."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """The measured moments of a study as arrays: what a fit needs."""

    phases: npt.NDArray[np.str_]  # [moments]
    indices: npt.NDArray[np.int64]  # [moments] episode number within the phase
    lives: npt.NDArray[np.int64]  # [moments] counted from 0; all 0 where games have no lives
    steps: npt.NDArray[np.int64]  # [moments]
    proxies: Floats  # [moments], or [moments, n] where the proxy looks at n
    criticalities: Floats  # [moments, n]
    half_widths: Floats  # [moments, n]
    trials: npt.NDArray[np.int64]  # [moments, n]
    n_values: tuple[int, ...]
    proxy: str
    groups: npt.NDArray[np.int64] | None = None  # [moments] equal for one game, and for copies
    runs: Floats | None = None  # [moments, runs, n] losses of single runs, where asked for
    statistics: Mapping[str, Floats] | None = None  # name → [moments, n], where asked for

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def keys(self) -> list[EpisodeKey]:
        """The episode of each moment, [moments]."""
        return list(
            map(EpisodeKey, self.phases.tolist(), self.indices.tolist(), self.lives.tolist())
        )

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row for each moment and n."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingExtra("a DataFrame", extra="pandas") from None
        many = len(self.n_values)
        proxies = np.broadcast_to(self.proxies.reshape(len(self), -1), (len(self), many))
        columns: dict[str, Any] = {
            "phase": np.repeat(self.phases, many),
            "episode": np.repeat(self.indices, many),
            "life": np.repeat(self.lives, many),
            "step": np.repeat(self.steps, many),
            "n": np.tile(self.n_values, len(self)),
            self.proxy: proxies.ravel(),
            "criticality": self.criticalities.ravel(),
            "half_width": self.half_widths.ravel(),
            "trials": self.trials.ravel(),
        }
        if self.groups is not None:
            columns["group"] = np.repeat(self.groups, many)
        return DataFrame(columns)

    def losses(self, estimand: str) -> Floats:
        """Return what a fit bounds: [moments, n], or single runs [moments, runs, n]."""
        if estimand == "mean":
            return self.criticalities
        if estimand != "single-run":
            if self.statistics is None or estimand not in self.statistics:
                raise InvalidInput(
                    f"these tuples hold no {estimand}; use study.tuples(estimand={estimand!r})"
                )
            return self.statistics[estimand]
        if self.runs is None:
            raise InvalidInput(
                "these tuples hold no single runs; use study.tuples(estimand='single-run')"
            )
        return self.runs
