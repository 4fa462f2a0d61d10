"""The Arcade Learning Environment's emulator as part of a snapshot."""

from __future__ import annotations

from typing import Any

from safemargin.environments.codecs import Codec, Reference

_WARM_UP = 4
"""Frames after a game's start in which the emulator holds something that its state does not."""


class EmulatorState(Codec):
    """An ALEInterface: the console, its random generator and the frame counters.

    Three things are missing from ALE's own state: the screen (stale after a restore, so that the
    observation belongs to the snapshot); the previous action (so that native sticky actions do
    not survive, see `native_stickiness`); and something that changes within the first frames of a
    game and that Qbert and Tetris react to. The last is put right by bringing the emulator to the
    same distance from a game's start before its state is restored.
    """

    mutable = True

    def content(self, value: Any) -> Any:
        return value.getEpisodeFrameNumber(), value.cloneState(include_rng=True)

    def restore(self, value: Any, content: Any) -> None:
        frames, state = content
        if frames < _WARM_UP or value.getEpisodeFrameNumber() < _WARM_UP:
            if frames < _WARM_UP:
                value.reset_game()
            no_operation = value.getLegalActionSet()[0]
            while value.getEpisodeFrameNumber() < min(frames, _WARM_UP):
                value.act(no_operation)
        value.restoreState(state)

    def encode(self, value: Any, reference: Reference) -> Any:
        return value.cloneState(include_rng=True).serialize()


def native_stickiness(env: Any) -> float:
    """ALE's own chance of repeating the previous action; 0 where there is no ALE."""
    emulator: Any = getattr(env.unwrapped, "ale", None)
    if type(emulator).__name__ != "ALEInterface":
        return 0.0
    return float(emulator.getFloat("repeat_action_probability"))
