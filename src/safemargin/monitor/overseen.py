"""An environment whose agent is watched by a monitor, and where an overseer acts on calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array
from safemargin.core.seeding import plain_generator
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput
from safemargin.monitor.decisions import Decision
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy
from safemargin.policies.actions import Mask, PolicyActions
from safemargin.policies.base import Memory, batch_of
from safemargin.policies.features import with_value

Env = gym.Env[Any, Any]

Overseer = Callable[[Any, Array, Decision, Env], Any]
"""`overseer(observation, scores, decision, env)` returns an action; None: the agent's own.

An overseer whose `sees_all` is true is asked at every decision, not only during calls.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the agent is about to do, and the monitor's verdict on it."""

    observation: Any
    scores: Array  # [actions]
    decision: Decision
    proposed: Any
    """The agent's own action."""
    step: int
    """Within the episode."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an overseen episode."""

    steps: int
    total_reward: float
    terminated: bool
    truncated: bool
    calls: int
    """Number of separate calls."""
    called_steps: int
    overruled: int
    """Steps at which an action other than the agent's was taken."""


class Overseen(gym.Wrapper[Any, Any, Any, Any]):
    """Runs the policy itself; when the monitor calls, the overseer chooses the action.

    `step()` lets the agent act; `step(action)` takes an action computed elsewhere as the agent's
    own, e.g. in an existing evaluation loop. Either way `info["oversight"]` holds the monitor's
    verdict, what the agent wanted and what was done. Without an overseer, the agent is watched and
    nothing is changed. Margins made for another policy are refused.
    """

    def __init__(
        self,
        env: Env,
        policy: Any,
        monitor: Monitor,
        overseer: Overseer | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        """`seed`: for the agent's random choices, where its actions are sampled."""
        super().__init__(env)
        self.monitor = monitor
        self.overseer = overseer
        self._policy = load_policy(policy, kind=monitor.margins.policy.get("kind"))
        if monitor.margins.policy.get("identity") is not None:
            monitor.check(self._policy)
        known = monitor.margins.settings
        names = [name for name in ("action_choice", "epsilon") if name in known]
        settings = Settings.from_mapping({name: known[name] for name in names})  # as measured
        self._choose = PolicyActions(env.action_space, self._policy.kind, settings)
        self._generator = plain_generator(seed)
        self._memory: Memory = None
        self._question: Question | None = None

    @property
    def question(self) -> Question:
        """What the agent is about to do; the next `step()` does that, or what the overseer says."""
        if self._question is None:
            raise InvalidInput("the episode has not started or has ended; reset the environment")
        return self._question

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; an unfinished one before it does not count for drift.

        A seed starts a new game even if the last one has lives left.
        """
        if self._question is not None or (options.get("seed") is not None and self._game_goes_on):
            self.monitor.end_episode(counted=False)
        observation, info = self.env.reset(**options)
        self.monitor.begin_episode()
        self._memory = self._policy.initial_memory(1)
        self._ask(observation, info, 0)
        return observation, info

    def step(self, action: Any = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Let the agent, or its overseer, act once."""
        question = self.question
        proposed = question.proposed if action is None else action
        decision, overseer = question.decision, self.overseer
        answer, asked = None, False
        if overseer is not None and (decision.call or getattr(overseer, "sees_all", False)):
            answer = overseer(question.observation, question.scores, decision, self.env)
            asked = True
        taken = proposed if answer is None else answer
        observation, reward, terminated, truncated, info = self.env.step(taken)
        names = ("margin", "proxy", "call", "began", "outside", "void", "why")
        oversight = {name: getattr(decision, name) for name in names} | {
            "asked": asked,
            "proposed": proposed,
            "taken": taken,
            "overruled": not np.array_equal(taken, proposed),
        }
        if not (terminated or truncated):
            self._ask(observation, info, question.step + 1)
        else:
            self._question = None
            if not self._game_goes_on:  # while a game has lives left, it goes on for the monitor
                self.monitor.end_episode()
        return observation, reward, terminated, truncated, {**info, "oversight": oversight}

    def _ask(self, observation: Any, info: dict[str, Any], step: int) -> None:
        """Work out what the agent would do here, and the monitor's verdict on it."""
        row, hidden = self._look(observation)
        mask = self._mask(info) if self._policy.uses_mask else None
        proposed = self._choose(row, self._generator, mask)
        self._question = Question(observation, row, self.monitor.step(row, hidden), proposed, step)

    def _look(self, observation: Any) -> tuple[npt.NDArray[np.float32], Any]:
        """Return the policy's scores and, if the monitor needs them, its features."""
        batch = batch_of([observation])
        if not self.monitor.needs_features:
            scores, self._memory = self._policy.scores(batch, self._memory)
            return scores[0], None
        found = self._policy.features(batch, self._memory)
        self._memory = found.memory
        return found.scores[0], with_value(found)[0]

    @property
    def _game_goes_on(self) -> bool:
        try:
            return bool(self.env.get_wrapper_attr("game_goes_on"))
        except AttributeError:
            return False

    def _mask(self, info: dict[str, Any]) -> Mask:
        mask = info.get("action_mask")
        if mask is None:
            with contextlib.suppress(AttributeError):
                mask = self.env.get_wrapper_attr("action_masks")()
        return None if mask is None else np.array(mask, dtype=bool)


def oversee(
    env: Env, policy: Any, monitor: Monitor, *, seed: int | None = None, only_calls: bool = False
) -> Generator[Question, Any, Outcome]:
    """Run one episode as a plain generator that yields each decision before it is acted upon.

    Send an action to overrule the agent; `next` lets it act. With `only_calls`, the generator
    yields only when the monitor calls. It returns the outcome of the episode.
    """
    watched = Overseen(env, policy, monitor, seed=seed)
    total, steps, calls, called, overruled = 0.0, 0, 0, 0, 0
    terminated = truncated = False
    try:
        watched.reset(seed=seed)
        while not (terminated or truncated):
            question = watched.question
            decision = question.decision
            answer = (yield question) if decision.call or not only_calls else None
            taken = question.proposed if answer is None else answer
            _, reward, terminated, truncated, _ = watched.step(taken)
            total += float(reward)
            steps += 1
            calls += decision.began
            called += decision.call
            overruled += not np.array_equal(taken, question.proposed)
    finally:
        if not (terminated or truncated):  # abandoned half-way
            monitor.end_episode(counted=False)
    return Outcome(steps, total, terminated, truncated, calls, called, overruled)
