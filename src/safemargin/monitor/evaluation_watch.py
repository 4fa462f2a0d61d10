"""A callback for `evaluate_policy` of Stable-Baselines3 that watches margins."""

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
from safemargin.policies.features import with_value


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """One call during the evaluation."""

    environment: int
    """Index among the evaluation's environments."""
    episode: int
    """Number of the episode in that environment, from 0."""
    step: int
    """Step of the episode at which the call began."""
    margin: int
    why: str


class EvaluationWatch:
    """Use as `evaluate_policy(model, env, callback=EvaluationWatch(monitor, model))`.

    The evaluation is unchanged; `calls`, `steps` and `called_steps` say what an overseer would
    have been called for. Margins made for another policy are refused. The episodes that the
    evaluation counts also count for drift, unless they are lives (`game_goes_on`): drift needs
    whole games.
    """

    def __init__(self, monitor: Monitor, policy: Any) -> None:
        self.monitor = monitor
        # The evaluation normalises by itself.
        with warnings.catch_warnings(action="ignore", category=NotNormalised):
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
        self._last_index = 0
        self._evaluation: Any = None
        """The evaluation's own count of episodes, a new object in each evaluation."""
        self._lives = False
        self._episodes = self._steps = np.zeros(0, dtype=np.int64)  # [environments]

    def __call__(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Look at all environments; Stable-Baselines3 calls this once for each, at every step."""
        index = int(locals_["i"])
        begins = locals_["episode_counts"] is not self._evaluation
        first = begins or index <= self._last_index
        self._last_index = index
        if not first:
            return
        observations, dones = locals_["observations"], np.asarray(locals_["dones"], dtype=bool)
        if begins:
            self._evaluation = locals_["episode_counts"]
            self._lives = _has_lives(locals_["env"])
            self.monitor.end_episode(counted=False)
            self._episodes, self._steps = (np.zeros(len(dones), dtype=np.int64) for _ in range(2))
        if self.monitor.needs_features:
            found = self.policy.features(observations, None)
            said = self.monitor.step(found.scores, with_value(found))
        else:
            scores, _ = self.policy.scores(observations, None)
            said = self.monitor.step(scores)
        # Environments that have run their share keep running, but no longer count.
        active = locals_["episode_counts"] < locals_["episode_count_targets"]  # [environments]
        self.steps += int(active.sum())
        self.called_steps += int((said.call & active).sum())
        lowest = int(said.margin[active].min())
        known = lowest if self.lowest_margin is None else self.lowest_margin
        self.lowest_margin = min(lowest, known)
        for each in np.flatnonzero(said.began & active).tolist():
            when = int(self._episodes[each]), int(self._steps[each])
            self.calls.append(WatchedCall(each, *when, said[each].margin, said[each].why))
        self._steps += 1
        ended = dones & _ends(locals_)
        whole = ended & active & (not self._lives)
        self.monitor.end_episode(whole)
        # Counting the others would favour short episodes: long ones end after the evaluation.
        self.monitor.end_episode(~active | (ended & ~whole), counted=False)
        self._episodes[ended] += 1
        self._steps[ended] = 0


def _ends(locals_: dict[str, Any]) -> Booleans:
    """Return whether a done environment has ended an episode that the evaluation counts."""
    if not locals_["is_monitor_wrapped"]:
        return np.ones(len(locals_["infos"]), dtype=bool)
    return np.array(["episode" in info for info in locals_["infos"]])  # else a life was lost


def _has_lives(env: Any) -> bool:
    """Return whether an episode of the environments may be one life of a game."""
    try:
        return bool(env.get_attr("game_goes_on"))
    except AttributeError:
        return False
