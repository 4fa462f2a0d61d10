"""Margins during an evaluation by Stable-Baselines3: a callback for its `evaluate_policy`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Booleans
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy
from safemargin.policies.base import NotNormalised


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """One call during the evaluation."""

    environment: int
    """Its place among the evaluation's environments."""
    episode: int
    """Its number in that environment, from 0."""
    step: int
    """Within the episode, at which the call began."""
    margin: int
    why: str


class EvaluationWatch:
    """`evaluate_policy(model, env, callback=EvaluationWatch(monitor, model))`.

    Nothing is changed about the evaluation; `calls`, `steps` and `called_steps` say what an
    overseer would have been called for. Margins made for another policy are refused. The episodes
    that the evaluation counts are those that count for drift; where they are lives, of which drift
    wants whole games (`game_goes_on`), none do.
    """

    def __init__(self, monitor: Monitor, policy: Any) -> None:
        self.monitor = monitor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotNormalised)  # here the evaluation does it
            self.policy = load_policy(policy)
        if monitor.margins.policy.get("identity") is not None:
            monitor.check(self.policy)
        if self.policy.initial_memory(1) is not None:
            raise InvalidInput(
                f"policy {self.policy.description} is recurrent; watch it with safemargin.Overseen"
            )
        self.calls: list[WatchedCall] = []
        self.steps = 0
        self.called_steps = 0
        self.lowest_margin: int | None = None
        self._last_place = 0
        self._evaluation: Any = None
        """The evaluation's own count of episodes, which it makes anew each time."""
        self._lives = False
        self._episodes = self._steps = np.zeros(0, dtype=np.int64)  # [environments]

    def __call__(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Called once for each environment at each step; all are looked at the first time."""
        place = int(locals_["i"])
        begins = locals_["episode_counts"] is not self._evaluation
        first = begins or place <= self._last_place
        self._last_place = place
        if not first:
            return
        observations, dones = locals_["observations"], np.asarray(locals_["dones"], dtype=bool)
        if begins:
            self._evaluation = locals_["episode_counts"]
            self._lives = _has_lives(locals_["env"])
            self.monitor.end_episode(counted=False)
            self._episodes, self._steps = (np.zeros(len(dones), dtype=np.int64) for _ in range(2))
        scores, _ = self.policy.scores(observations, None)
        said = self.monitor.step(scores)
        # Environments that have run their share go on, and are not looked at any longer.
        active = locals_["episode_counts"] < locals_["episode_count_targets"]  # [environments]
        self.steps += int(active.sum())
        self.called_steps += int((said.call & active).sum())
        lowest = int(said.margin[active].min())
        self.lowest_margin = (
            lowest if self.lowest_margin is None else min(lowest, self.lowest_margin)
        )
        for each in np.flatnonzero(said.began & active).tolist():
            self.calls.append(
                WatchedCall(
                    each,
                    int(self._episodes[each]),
                    int(self._steps[each]),
                    int(said.margin[each]),
                    said[each].why,
                )
            )
        self._steps += 1
        ended = dones & _ends(locals_)
        whole = ended & active & (not self._lives)
        self.monitor.end_episode(whole)
        # Of the others, short episodes would end before the evaluation does, and long ones not.
        self.monitor.end_episode(~active | (ended & ~whole), counted=False)
        self._episodes[ended] += 1
        self._steps[ended] = 0


def _ends(locals_: dict[str, Any]) -> Booleans:
    """Whether an environment that is done has ended its episode, as the evaluation counts them."""
    if not locals_["is_monitor_wrapped"]:
        return np.ones(len(locals_["infos"]), dtype=bool)
    return np.array(["episode" in info for info in locals_["infos"]])  # else a life was lost


def _has_lives(env: Any) -> bool:
    """Whether an episode of the environments may be one life of a game."""
    try:
        return bool(env.get_attr("game_goes_on"))
    except AttributeError:
        return False
