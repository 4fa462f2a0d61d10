"""The Arcade Learning Environment's emulator as part of a snapshot."""

from __future__ import annotations

from typing import Any

from safemargin.environments.codecs import Codec, Reference

_WARM_UP = 4
"""The first frames of a game, during which ALE's saved state leaves something out."""


class EmulatorState(Codec):
    """An ALEInterface: the console, its random generator and the frame counters.

    ALE's own state lacks three things: the screen (stale after a restore, so the observation is
    part of the snapshot); the previous action (so native sticky actions do not survive, see
    `native_stickiness`); and something that changes within the first frames of a game and that
    Qbert and Tetris react to. To make up for the last, the emulator is first brought to the same
    distance from a game's start.
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
    """Return ALE's own probability of repeating the previous action; 0 without ALE."""
    if not is_atari_game(env):
        return 0.0
    return float(env.unwrapped.ale.getFloat("repeat_action_probability"))


def is_atari_game(env: Any) -> bool:
    """Whether an environment runs in the Arcade Learning Environment."""
    return type(getattr(env.unwrapped, "ale", None)).__name__ == "ALEInterface"
