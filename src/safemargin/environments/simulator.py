"""A live environment that can be saved, restored and hashed, with all its wrappers."""

from __future__ import annotations

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.environments import graph
from safemargin.environments.graph import copied
from safemargin.errors import (
    EnvironmentFault,
    InvalidInput,
    SafemarginError,
    describe_error,
    errors_as,
)
from safemargin.policies.action_spaces import parts_of

Env = gym.Env[Any, Any]
Way = Literal["snapshot", "replay"]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one action. The observation is a copy that the caller may change."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a simulator at one moment, which can be restored any number of times."""

    observation: Any
    mask: Mask | None  # [actions]
    ended: bool
    steps: int
    state: Any


class Simulator(ABC):
    """A live environment that can be saved, restored and hashed."""

    way: Way
    portable: bool = False
    """Whether a snapshot can be restored in another simulator of the same environment."""
    digest_is_cheap: bool = False
    """Whether `digest` takes only a small part of the time of a step."""
    looks_back: float = math.inf
    """An observation depends on this many last steps; earlier ones need not be watched."""

    def __init__(self, env: Env) -> None:
        require_single(env)
        self.env = env
        self.observation: Any = None
        """The last observation."""
        self.last_info: Any = None
        self.mask: Mask | None = None  # [actions]
        """Which actions are legal at this moment; None where the environment does not say."""
        self.ended = True
        """Whether a reset or restore is needed before the next step."""
        self.steps = 0
        """The number of steps since the last reset."""
        self.layers: tuple[Env, ...] = layers_of(env)
        """The wrappers and the base environment, outermost first."""
        self.name = name_of(env)
        self._ask_mask = _mask_method(self.layers)
        self._counts_lives = any("game_goes_on" in vars(layer) for layer in self.layers)

    def reset(self, seed: int) -> Any:
        """Start an episode and return its first observation."""
        self.steps = 0
        with errors_as(EnvironmentFault, f"{self.name}: reset(seed={seed}) raised"):
            observation, info = self.env.reset(seed=seed)
        return self._begin(observation, info)

    @property
    def game_goes_on(self) -> bool:
        """Whether the episode ended with a life of a game that has more (see `atari.OneLife`)."""
        return self.ended and self._counts_lives and bool(self.env.get_wrapper_attr("game_goes_on"))

    def next_life(self) -> Any:
        """Start the next episode of the same game and return its first observation."""
        if not self.game_goes_on:
            raise InvalidInput(f"{self.name}: there is no further life; reset it instead")
        return self._begin(*self.env.reset())

    def _begin(self, observation: Any, info: Any) -> Any:
        self.ended = False
        self._observe(observation, info)
        return copied(self.observation)

    def step(self, action: Any, *, watched: bool = True) -> Step:
        """Take one step; raise EnvironmentFault if the environment breaks its contract.

        `watched=False` means that no observation is needed before `looks_back` further steps.
        """
        if self.ended:
            raise InvalidInput(f"{self.name}: the episode has ended; reset or restore it first")
        self.steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(copied(action))
        except SafemarginError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(
                f"{self.name}: step {self.steps} raised {describe_error(error)}"
            ) from error
        value = self._checked_reward(reward)
        self.ended = bool(terminated) or bool(truncated)
        self._observe(observation, info)
        return Step(copied(self.observation), value, bool(terminated), bool(truncated))

    def save(self) -> Snapshot:
        """Save this moment."""
        return Snapshot(
            copied(self.observation), self.mask, self.ended, self.steps, self._save_state()
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a moment that this simulator saved."""
        self._restore_state(snapshot)
        self.observation = copied(snapshot.observation)
        self.mask = snapshot.mask
        self.ended = snapshot.ended
        self.steps = snapshot.steps

    @abstractmethod
    def _save_state(self) -> Any: ...

    @abstractmethod
    def _restore_state(self, snapshot: Snapshot) -> None: ...

    @abstractmethod
    def digest(self) -> bytes | None:
        """Return 16 bytes over the full state, equal only if the future is equal.

        None if part of the present state cannot be seen.
        """

    @property
    def digest_is_whole(self) -> bool:
        """Whether equal states can be recognised: `digest` covers all that a restore puts back."""
        return True

    def reseed(self, generator: np.random.Generator) -> None:
        """Reseed every random generator in the layers from this stream."""
        for codec, source in graph.random_sources(self.layers):
            codec.reseed(source, generator)

    def random_state(self) -> bytes:
        """Return a digest of all random generators, which changes when one of them is used."""
        return graph.digest([source for _, source in graph.random_sources(self.layers)])

    def random_sources(self) -> int:
        """Return the number of random generators that `reseed` reaches."""
        return len(graph.random_sources(self.layers))

    def without_reseed(self) -> tuple[str, ...]:
        """Return the registered types whose random generator, if any, is out of reach."""
        return tuple(graph.without_reseed(self.layers))

    def layer_digests(self) -> dict[str, bytes]:
        """Return a hash of each layer's state, outermost first."""
        return dict(zip(self.layer_names(), graph.digests(self.layers), strict=True))

    def layer_names(self) -> list[str]:
        """Return the class names of the layers, outermost first, numbered if one occurs twice."""
        names: list[str] = []
        for layer in self.layers:
            name = type(layer).__name__
            again = sum(other.split(" #")[0] == name for other in names)
            names.append(f"{name} #{again + 1}" if again else name)
        return names

    def opaque(self, *, only_unsafe: bool = False) -> tuple[str, ...]:
        """Return the attributes that lead to objects whose state cannot be seen.

        With `only_unsafe`, those that lead to native objects a restore could leave dangling.
        """
        return tuple(graph.opaque_attributes(self.layers, only_unsafe=only_unsafe))

    def close(self) -> None:
        """Close the environment."""
        close_environment(self.env)

    @property
    def info(self) -> Any:
        """What the environment said beside the reward of the last step."""
        return self.last_info

    def _observe(self, observation: Any, info: Any) -> None:
        if _has_nan(observation):
            raise self._fault("the observation", "contains NaN")
        self.observation = copied(observation)
        self.mask, self.last_info = self._read_mask(info), info

    def _read_mask(self, info: Any) -> Mask | None:
        try:
            given = info.get("action_mask") if isinstance(info, dict) else None
            if given is None and self._ask_mask is not None:
                given = self._ask_mask()
            if given is None:
                return None
            mask = np.array(given, dtype=bool)
        except (Exception, SystemExit) as error:
            if self.ended:  # it is no longer needed
                return None
            text = f"raised {describe_error(error)}"
            raise self._fault("reading the action mask", text) from error
        mask.flags.writeable = False  # shared with snapshots
        if self.ended:
            return mask
        parts = parts_of(self.env.action_space)
        if parts and mask.shape != (sum(parts),):
            each = "action" if len(parts) == 1 else "choice of each part of the action"
            text = f"has shape {list(mask.shape)}; expected [{sum(parts)}], one entry for each"
            raise self._fault("the action mask", f"{text} {each}")
        if not all(one.any() for one in np.split(mask, np.cumsum(parts)[:-1])):
            raise self._fault("the action mask", "allows no action at all")
        return mask

    def _checked_reward(self, reward: Any) -> float:
        if isinstance(reward, np.ndarray) and reward.size == 1:
            reward = reward.item()
        if not isinstance(reward, (numbers.Real, np.bool_)):
            raise self._fault("the reward", f"is not a number: {reward!r}")
        value = float(reward)
        if not math.isfinite(value):
            raise self._fault("the reward", f"is {value}, not a finite number")
        return value

    def _fault(self, part: str, text: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.name}: {part} at step {self.steps} {text}")


def close_environment(env: Env) -> None:
    """Close an environment; an error then becomes a warning, so that it hides no result."""
    try:
        env.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 — the work is already done
        warnings.warn(f"{name_of(env)}: close() raised {describe_error(error)}", stacklevel=2)


def require_single(env: Any) -> None:
    """Refuse anything but a single environment of a single agent."""
    if isinstance(env, gym.vector.VectorEnv):
        raise InvalidInput(
            f"{type(env).__name__} is a vector environment, which resets itself between episodes; "
            "give the single environment it was made from"
        )
    if not isinstance(env, gym.Env) and hasattr(env, "possible_agents"):  # PettingZoo
        raise InvalidInput(
            f"{type(env).__name__} is a multi-agent environment; give a gymnasium.Env in which one "
            "agent acts and the others are part of the environment"
        )
    if not isinstance(env, gym.Env):
        advice = "; give the environment that it makes" if callable(env) else ""
        raise InvalidInput(
            f"expected a gymnasium.Env, got {type(env).__module__}.{type(env).__qualname__}{advice}"
        )


def layers_of(env: Env) -> tuple[Env, ...]:
    """Return the wrappers and the base environment, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return tuple(layers)


def name_of(env: Env) -> str:
    """Return a name for the environment to use in messages."""
    spec = env.unwrapped.spec
    return spec.id if spec is not None else type(env.unwrapped).__name__


def _mask_method(layers: tuple[Env, ...]) -> Callable[[], Any] | None:
    for layer in layers:
        # On the class, not through Wrapper.__getattr__: each layer answers for itself.
        if callable(getattr(type(layer), "action_masks", None)):
            method: Callable[[], Any] = layer.action_masks  # type: ignore[attr-defined]
            return method
    return None


def _has_nan(observation: Any) -> bool:
    if isinstance(observation, np.ndarray):
        return observation.dtype.kind in "fc" and bool(np.isnan(observation).any())
    if isinstance(observation, (float, np.floating)):
        return math.isnan(observation)
    if isinstance(observation, dict):
        return any(map(_has_nan, observation.values()))
    if isinstance(observation, (tuple, list)):
        return any(map(_has_nan, observation))
    return False
