"""Recorded actions played again, step by step, and checked against what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safemargin.core.records import Array, Episode
from safemargin.environments import Simulator, Step


@dataclass(eq=False)
class Replay:
    """One recorded episode, played again in a simulator.

    `earlier_lives` are the actions of the lives before the episode's own, in the same game.
    `differs(step)` makes the error to raise where the replay does not give what was recorded.
    The observations of the next `unwatched` steps are not needed, earlier lives included.
    """

    simulator: Simulator
    episode: Episode
    earlier_lives: Sequence[Array]
    differs: Callable[[int], Exception]
    unwatched: float = field(default=math.inf, kw_only=True)
    step: int = field(default=0, init=False)
    """The step of the episode that is played next."""

    def begin(self) -> Any:
        """Go to the episode's first step, through the lives before it; return its observation."""
        simulator = self.simulator
        observation = simulator.reset(self.episode.seed)
        for actions in self.earlier_lives:
            for action in actions:
                if simulator.ended:
                    raise self.differs(0)
                self._act(action)
            if not simulator.game_goes_on:
                raise self.differs(0)
            observation = simulator.next_life()
        self.step = 0
        return observation

    def advance(self) -> Step:
        """Take the episode's next action, and compare its reward and whether it ends anything."""
        episode, step = self.episode, self.step
        taken = self._act(episode.actions[step])
        last = step == episode.steps - 1
        if taken.reward != episode.rewards[step] or (self.simulator.ended and not last):
            raise self.differs(step)
        self.step = step + 1
        return taken

    def _act(self, action: Any) -> Step:
        taken = self.simulator.step(native_action(action), watched=self.unwatched <= 0)
        self.unwatched -= 1
        return taken


def native_action(action: Any) -> Any:
    """Return a recorded action as the environment first received it: an int, or an array."""
    array = np.asarray(action)
    return array.item() if array.ndim == 0 and array.dtype.kind != "f" else array
