"""Pictures of a recorded episode, replayed in an environment that draws."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from safemargin.criticality.replaying import Replay
from safemargin.environments import EnvironmentSpec, Snapshot, make_simulator
from safemargin.environments.lean import AtariSimulator, atari_stack
from safemargin.environments.simulator import Env, close_environment
from safemargin.errors import NoPictures, SafemarginError, describe_error
from safemargin.replay.recordings import Recording

Picture = npt.NDArray[np.uint8]  # [height, width, 3]

KEYFRAME = 64
"""Where states can be saved, one is kept every this many steps."""


class Camera:
    """An environment that draws and can go to any step of a recording.

    Only the thread that made a camera may use it: some environments draw through a graphics
    context that belongs to a thread.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Raise NoPictures where the environment cannot be made here or does not draw."""
        # No window is ever opened, so pygame need not look for a screen or complain about it.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        env = drawing_environment(spec)
        plain_atari = atari_stack(env) is not None
        # A drawing environment holds windows and the like, which no snapshot should touch.
        self.simulator = make_simulator(env, way="snapshot" if plain_atari else "replay")
        self.jumps = plain_atari
        """Whether it can jump between steps: states are kept on the way."""
        self._recording: Recording | None = None
        self._replay: Replay | None = None
        self._shown: Picture | None = None
        self._keyframes: dict[int, tuple[Snapshot, Picture]] = {}

    @property
    def action_names(self) -> list[str]:
        """The environment's names of its actions; empty where it has none."""
        asked = getattr(self.simulator.env.unwrapped, "get_action_meanings", None)
        return [str(name) for name in asked()] if callable(asked) else []

    @property
    def frames_per_second(self) -> float:
        """Steps per second of the game itself, at most 30."""
        if isinstance(self.simulator, AtariSimulator):
            return 60 / self.simulator.stack.frame_skip
        stated = self.simulator.env.metadata.get("render_fps") or 30
        return float(min(max(stated, 1), 30))

    def look(self, recording: Recording, step: int) -> Picture:
        """Return the picture before the action of a step; at `steps`, after the last action."""
        replay = self._replay
        if replay is None or recording is not self._recording:
            replay = self._start(recording)
        nearest = max((kept for kept in self._keyframes if kept <= step), default=0)
        if step < replay.step or nearest > replay.step:
            self._return_to(replay, nearest)
        while replay.step < step:
            replay.advance()
            self._shown = None
            if replay.step % KEYFRAME == 0:
                self._keep(replay.step)
        return self.picture()

    def picture(self) -> Picture:
        """Return the picture of the current state."""
        if self._shown is None:
            self._shown = render(self.simulator.env)
        return self._shown

    def close(self) -> None:
        """Close the environment."""
        self.simulator.close()

    def forget(self) -> None:
        """Start over at the next look, because something else has used the simulator."""
        self._recording = self._replay = self._shown = None

    def _start(self, recording: Recording) -> Replay:
        """Go to the first step of another recording."""
        self._keyframes.clear()
        self._recording = recording
        differs = partial(_differs, recording)
        self._replay = Replay(self.simulator, recording.episode, recording.earlier_lives, differs)
        self._return_to(self._replay, 0)
        return self._replay

    def _return_to(self, replay: Replay, step: int) -> None:
        """Go back to a keyframe, or to the first step where there is none."""
        if step in self._keyframes:
            snapshot, self._shown = self._keyframes[step]
            self.simulator.restore(snapshot)
            replay.step = step
        else:
            replay.begin()
            self._shown = None
            self._keep(0)

    def _keep(self, step: int) -> None:
        if self.jumps and step not in self._keyframes:
            # With the picture: an emulator's screen is not part of its state.
            self._keyframes[step] = self.simulator.save(), self.picture()


def encode(picture: Picture) -> bytes:
    """Return a picture as JPEG, sharp enough for the hard edges of old games."""
    target = io.BytesIO()
    Image.fromarray(picture).save(target, "JPEG", quality=90, subsampling=0)
    return target.getvalue()


def render(env: Env) -> Picture:
    """Return what an environment draws; NoPictures where that is not a picture."""
    try:
        drawn: Any = env.render()
    except SafemarginError:
        raise
    except (Exception, SystemExit) as error:
        raise NoPictures(f"no pictures: render() raised {describe_error(error)}") from error
    picture = np.asarray(drawn)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise NoPictures(
            f"no pictures: render() gave {type(drawn).__name__} instead of an array "
            "[height, width, 3] of bytes"
        )
    return picture


def drawing_environment(spec: EnvironmentSpec) -> Env:
    """Make the environment with render_mode='rgb_array'; unchanged where that is its own mode."""
    arguments = {**spec.arguments, "render_mode": "rgb_array"}
    refused = False
    with warnings.catch_warnings(action="ignore"):  # an unknown mode is reported below
        try:
            env = EnvironmentSpec(spec.text, arguments, spec.factory).make()
        except SafemarginError:
            refused = True
            env = _as_it_is(spec)
    if env.render_mode == "rgb_array" and "rgb_array" in env.metadata.get("render_modes", ()):
        if hasattr(env.unwrapped, "mujoco_renderer") and not _opengl_in_reach():
            close_environment(env)
            raise _no_opengl(spec)
        return env
    close_environment(env)
    reason = "does not draw: it knows no render_mode='rgb_array'"
    if refused and (spec.factory is not None or ":" in spec.name):
        reason = (
            "does not take render_mode='rgb_array'; let the function that makes it take the "
            "argument and pass it on"
        )
    raise NoPictures(f"no pictures: {spec.name} {reason}")


def _opengl_in_reach() -> bool:
    """Return whether MuJoCo can draw; trying without OpenGL may end the whole process."""
    backend = os.environ.get("MUJOCO_GL")
    if backend in ("egl", "osmesa"):
        return True
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return backend in (None, "glfw") and (screen or not sys.platform.startswith("linux"))


def _no_opengl(spec: EnvironmentSpec) -> NoPictures:
    backend = os.environ.get("MUJOCO_GL")
    now = f"MUJOCO_GL is {backend!r}" if backend else "MUJOCO_GL is not set"
    cure = {"egl": "osmesa", "osmesa": "egl"}.get(backend or "", "egl (or osmesa)")
    return NoPictures(
        f"no pictures: MuJoCo finds no OpenGL to draw {spec.name} with, {now}; set MUJOCO_GL={cure}"
    )


def _as_it_is(spec: EnvironmentSpec) -> Env:
    try:
        return spec.make()
    except SafemarginError as error:
        if os.environ.get("MUJOCO_GL") and _through_mujoco(error):
            raise _no_opengl(spec) from error
        raise NoPictures(f"no pictures: {error}") from error


def _through_mujoco(error: SafemarginError) -> bool:
    """Return whether MuJoCo raised it while looking for OpenGL."""
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    return any("mujoco" in Path(frame.filename).parts for frame in frames)


def _differs(recording: Recording, step: int) -> NoPictures:
    return NoPictures(
        f"no pictures: replaying {recording.name} did not give what was recorded at step {step}, "
        "so they would show another episode; run the doctor on the environment"
    )
