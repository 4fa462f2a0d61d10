"""Margins during an evaluation by Stable-Baselines3: a callback for its `evaluate_policy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.errors import InvalidInput
from safemargin.monitor import Monitor
from safemargin.policies import load_policy


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
    overseer would have been called for. Margins made for another policy are refused.
    """

    def __init__(self, monitor: Monitor, policy: Any) -> None:
        self.monitor = monitor
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
        self._last_place: int | None = None
        self._episodes = self._steps = np.zeros(0, dtype=np.int64)  # [environments]

    def __call__(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Called once for each environment at each step; all are looked at the first time."""
        place = int(locals_["i"])
        first = self._last_place is None or place <= self._last_place
        self._last_place = place
        if not first:
            return
        observations, dones = locals_["observations"], np.asarray(locals_["dones"], dtype=bool)
        if (locals_["current_lengths"] == 1).all():  # an evaluation begins
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
        if dones.any():
            self.monitor.end_episode(dones)
            self._episodes[dones] += 1
            self._steps[dones] = 0
