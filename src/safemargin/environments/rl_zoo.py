"""The environment of an rl-zoo training folder, as rl-zoo evaluates its agent in it."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.environments.simulator import Env, layers_of
from safemargin.environments.spec import EnvironmentSpec
from safemargin.errors import InvalidInput, MissingExtra, errors_as
from safemargin.policies.rl_zoo import ZooFolder, read_folder

try:
    from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
    from stable_baselines3.common.vec_env.stacked_observations import StackedObservations
except ImportError as error:
    raise MissingExtra("the environment of an rl-zoo folder", extra="rl-zoo") from error


def make_rl_zoo(text: str, **arguments: Any) -> Env:
    """Make the environment of a folder; `arguments` replace those that it was trained with."""
    folder = read_folder(text)
    folder.register()
    env = EnvironmentSpec.parse(folder.environment, {**folder.arguments, **arguments}).make()
    for name, options in folder.wrappers:
        with errors_as(InvalidInput, f"rl-zoo:{text}: the wrapper {name} failed:"):
            env = _wrapper(name, text)(env, **options)
    return AsEvaluated(env, folder)


class AsEvaluated(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks frames, normalised first where they were in training, and starts games afresh.

    The stacking is Stable-Baselines3's own: an episode begins with frames of zeros. A reset with a
    seed begins a new game even where the wrapper below would continue with the next life.
    """

    def __init__(self, env: Env, folder: ZooFolder) -> None:
        super().__init__(env)
        self.normalises_frames = folder.normalises_frames
        self._normalisation: Any = None
        self._stack: Any = None
        if folder.normalises_frames and folder.statistics is not None:
            from safemargin.policies.normalisation import load_normalisation

            self._normalisation = load_normalisation(folder.statistics, env, str(folder.folder))
            if not _all_float(env.observation_space):
                raise InvalidInput(
                    f"rl-zoo:{folder.folder}: frames of whole numbers that are normalised before "
                    "they are stacked are not supported; export the agent to ONNX and write a "
                    "function that makes its environment (file.py:function agent.onnx)"
                )
        if folder.frame_stack:
            with errors_as(InvalidInput, f"rl-zoo:{folder.folder}: frames cannot be stacked:"):
                frames: Any = self.observation_space
                self._stack = StackedObservations(1, folder.frame_stack, frames)
            self.observation_space = self._stack.stacked_observation_space
        self._lives: Any = next(filter(_counts_lives, layers_of(env)), None)
        if self._lives is not None:
            self.game_goes_on = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self._lives is not None:
            self.game_goes_on = False
            if seed is not None:
                self._lives.was_real_done = True
        observation, info = self.env.reset(seed=seed, options=options)
        return self._seen(observation, first=True), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._lives is not None:
            self.game_goes_on = (terminated or truncated) and not self._lives.was_real_done
        return self._seen(observation), reward, terminated, truncated, info

    def _seen(self, observation: Any, *, first: bool = False) -> Any:
        if self._stack is None:
            return observation
        batch = _rows(observation)
        if self._normalisation is not None:
            batch = self._normalisation(batch)
        if first:
            stacked = self._stack.reset(batch)
        else:  # not marked as an end, which would empty the stack before it is seen
            stacked, _ = self._stack.update(batch, np.zeros(1, bool), [{}])
        if isinstance(stacked, dict):
            return {key: values[0].copy() for key, values in stacked.items()}
        return stacked[0].copy()


def _wrapper(name: str, text: str) -> Any:
    """Return a wrapper class by its dotted name; nothing else is ever called."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"rl-zoo:{text}: the wrapper {name} cannot be imported ({error}); install the package "
            "that has it (rl-zoo's own are in 'rl_zoo3'), or name a function that makes the "
            "environment and the model instead (file.py:function model.zip)"
        ) from error
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        raise InvalidInput(
            f"rl-zoo:{text}: env_wrapper {name} is not a gymnasium.Wrapper, so it is not called; "
            "name a function that makes the environment and the model instead "
            "(file.py:function model.zip)"
        )
    return found


def _counts_lives(layer: Env) -> bool:
    return isinstance(layer, EpisodicLifeEnv)


def _rows(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]


def _all_float(space: gym.Space[Any]) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return all(map(_all_float, space.spaces.values()))
    return space.dtype is not None and space.dtype.kind == "f"
