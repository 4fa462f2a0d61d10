"""Atari games without the overhead of the wrappers: the same games, bit for bit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.environments.ale import EmulatorState, native_stickiness
from safemargin.environments.atari import GameStart, OneLife, SignReward
from safemargin.environments.graph import copied
from safemargin.environments.simulator import Env, Simulator, Snapshot, Step, Way, layers_of
from safemargin.errors import EnvironmentFault, InvalidInput, errors_as

Frame = npt.NDArray[np.uint8]

_EMULATOR = EmulatorState()


@dataclass(frozen=True, slots=True)
class AtariStack:
    """The options of the wrappers that are replaced."""

    game: tuple[Any, ...]
    """The game's name, mode, difficulty, number of actions and limit of frames."""
    frame_skip: int
    screen_size: tuple[int, int]
    frames: int
    one_life: bool
    """A lost life ends the episode, and the next episode continues the same game."""
    ends_with_life: bool
    """A lost life ends the episode, and the next one is another game."""
    sign_reward: bool


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state of a game, which any simulator with the same stack can continue."""

    stack: AtariStack
    emulator: Any
    frames: tuple[Frame, ...]
    marks: tuple[bytes | None, ...]
    lives: int
    goes_on: bool


class AtariSimulator(Simulator):
    """Drives the emulator itself and does what the wrappers would have done.

    The wrappers start a game and are not used after that, except for their two screen buffers.
    These are not part of a snapshot: they affect only the last observation of a lost game.
    """

    way: Way = "snapshot"
    portable = True
    digest_is_cheap = True

    def __init__(self, env: Env, stack: AtariStack) -> None:
        super().__init__(env)
        import cv2

        self._cv2 = cv2
        self.stack = stack
        self.looks_back = stack.frames
        base: Any = env.unwrapped
        self._emulator = base.ale
        self._actions = tuple(base._action_set)
        self._screens: Any = env.get_wrapper_attr("obs_buffer")
        self._frames: tuple[Frame | None, ...] = ()
        self._marks: tuple[bytes | None, ...] = ()
        self._lives = 0
        self._goes_on = False

    def reset(self, seed: int) -> Any:
        observation = super().reset(seed)
        self._frames = tuple(np.array(frame) for frame in observation)
        self._marks = (None,) * len(self._frames)
        self._lives = self._emulator.lives()
        self._goes_on = False
        return observation

    @property
    def game_goes_on(self) -> bool:
        return self.ended and self._goes_on

    def next_life(self) -> Any:
        if not self.game_goes_on:
            raise InvalidInput(f"{self.name}: there is no further life; reset it instead")
        self._goes_on = self.ended = False
        return copied(self.observation)

    def step(self, action: Any, *, watched: bool = True) -> Step:
        if self.ended:
            raise InvalidInput(f"{self.name}: the episode has ended; reset or restore it first")
        self.steps += 1
        with errors_as(EnvironmentFault, f"{self.name}: step {self.steps} raised"):
            chosen = self._actions[action]
        emulator, stack = self._emulator, self.stack
        last = stack.frame_skip - 1
        points = 0.0
        terminated = truncated = False
        for frame in range(stack.frame_skip):
            points += emulator.act(chosen, 1.0)
            terminated = emulator.game_over(with_truncation=False)
            truncated = emulator.game_truncated()
            if stack.ends_with_life:
                lives = emulator.lives()
                terminated = terminated or lives < self._lives
                self._lives = lives
            if terminated or truncated:
                break
            if watched and frame >= last - 1:
                emulator.getScreenGrayscale(self._screens[last - frame])
        self._see(watched)
        if stack.one_life:
            lives = emulator.lives()
            lost = lives < self._lives
            self._lives = lives
            self._goes_on = lost and not (terminated or truncated)
            terminated = terminated or lost
        self.ended = terminated or truncated
        reward = float(np.sign(points)) if stack.sign_reward else points
        return Step(copied(self.observation), reward, terminated, truncated)

    @property
    def info(self) -> dict[str, int]:
        return {
            "lives": self._emulator.lives(),
            "episode_frame_number": self._emulator.getEpisodeFrameNumber(),
            "frame_number": self._emulator.getFrameNumber(),
        }

    def _see(self, watched: bool) -> None:
        """Push the newest frame, or None for an unwatched one, into the stack."""
        frame = None
        if watched:
            newest, second = self._screens[0], self._screens[1]
            np.maximum(newest, second, out=newest)
            frame = self._cv2.resize(
                newest, self.stack.screen_size, interpolation=self._cv2.INTER_AREA
            )
        self._frames = (*self._frames[1:], frame)
        self._marks = (*self._marks[1:], None)
        # There is no observation where steps were not watched.
        known = all(each is not None for each in self._frames)
        self.observation = np.stack(self._frames) if known else None  # type: ignore[arg-type]

    def _save_state(self) -> _Saved:
        return _Saved(
            self.stack,
            _EMULATOR.content(self._emulator),
            self._frames,  # type: ignore[arg-type]
            self._marks,
            self._lives,
            self._goes_on,
        )

    def _restore_state(self, snapshot: Snapshot) -> None:
        saved = snapshot.state
        if not isinstance(saved, _Saved) or saved.stack != self.stack:
            raise InvalidInput("a snapshot can only be restored in the same game")
        _EMULATOR.restore(self._emulator, saved.emulator)
        self._frames, self._marks = saved.frames, saved.marks
        self._lives, self._goes_on = saved.lives, saved.goes_on

    def random_state(self) -> bytes:
        return b""  # only a reset draws: the emulator's sticky actions are refused

    def layer_digests(self) -> dict[str, bytes]:
        return {type(self.env.unwrapped).__name__: self.digest()}

    def digest(self) -> bytes:
        # Each frame is hashed only once, although it is part of several observations.
        marks = [
            hashlib.sha256(frame).digest() if mark is None else mark  # type: ignore[arg-type]
            for frame, mark in zip(self._frames, self._marks, strict=True)
        ]
        self._marks = tuple(marks)
        state = self._emulator.cloneState(include_rng=True).serialize()
        counters = (self._lives, self._goes_on, self.ended)
        hashed = hashlib.sha256(state)
        hashed.update(b"".join(marks))
        hashed.update(repr(counters).encode())
        return hashed.digest()[:16]


def atari_stack(env: Env) -> AtariStack | None:
    """Return the options of a stack with no other wrappers than these; else None."""
    base: Any = env.unwrapped
    if type(base).__name__ != "AtariEnv" or type(base).__module__ != "ale_py.env":
        return None
    from gymnasium.wrappers import (
        AtariPreprocessing,
        FrameStackObservation,
        OrderEnforcing,
        PassiveEnvChecker,
    )

    wrappers = layers_of(env)[:-1]
    kinds = [type(layer) for layer in wrappers]
    layers: dict[type, Any] = dict(zip(kinds, wrappers, strict=True))
    stacking, pictures = layers.get(FrameStackObservation), layers.get(AtariPreprocessing)
    anywhere = (OrderEnforcing, PassiveEnvChecker, SignReward)
    order = (OneLife, FrameStackObservation, AtariPreprocessing, GameStart)
    if (
        stacking is None
        or pictures is None
        or len(layers) < len(kinds)  # one of them twice
        or [kind for kind in kinds if kind not in anywhere] != [k for k in order if k in layers]
        or SignReward in kinds[kinds.index(AtariPreprocessing) :]
    ):
        return None
    if (
        pictures.frame_skip < 2
        or not pictures.grayscale_obs
        or pictures.grayscale_newaxis
        or pictures.scale_obs
        or base._frameskip != 1
        or base.continuous
        or native_stickiness(env) > 0
    ):
        return None
    frame_limit = base.ale.getInt("max_num_frames_per_episode")
    version = base._game_mode, base._game_difficulty, len(base._action_set), frame_limit
    return AtariStack(
        game=(base._game, *version),
        frame_skip=pictures.frame_skip,
        screen_size=tuple(pictures.screen_size),
        frames=stacking.stack_size,
        one_life=OneLife in layers,
        ends_with_life=pictures.terminal_on_life_loss,
        sign_reward=SignReward in layers,
    )
