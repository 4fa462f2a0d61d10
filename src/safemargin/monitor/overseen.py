"""An environment in which a monitor watches the agent, and somebody else acts when it calls."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.records import Array
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput
from safemargin.monitor.decisions import Decision
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy
from safemargin.policies.actions import Mask, PolicyActions
from safemargin.policies.base import Memory, batch_of

Env = gym.Env[Any, Any]

Overseer = Callable[[Any, Array, Decision, Env], Any]
"""`overseer(observation, scores, decision, env)` → an action; None: the agent's own.

One with a true `sees_all` is asked at every decision, not only when the monitor calls.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the agent is about to do, and what the monitor says to it."""

    observation: Any
    scores: Array  # [actions]
    decision: Decision
    proposed: Any
    """The agent's own action."""
    step: int
    """Within the episode."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went."""

    steps: int
    total_reward: float
    terminated: bool
    truncated: bool
    calls: int
    """Separate calls that began."""
    called_steps: int
    overruled: int
    """Steps at which another action than the agent's was taken."""


class _Agent:
    """The policy as it acts in one environment: scores, memory and the choice of actions."""

    def __init__(self, env: Env, policy: Any, monitor: Monitor, seed: int | None) -> None:
        self.env = env
        self.policy = load_policy(policy, kind=monitor.margins.policy.get("kind"))
        self.monitor = monitor
        if monitor.margins.policy.get("identity") is not None:
            monitor.check(self.policy)
        known = monitor.margins.settings
        names = [name for name in ("action_choice", "epsilon") if name in known]
        settings = Settings.from_mapping({name: known[name] for name in names})  # as measured
        self._choose = PolicyActions(env.action_space, self.policy.kind, settings)
        self._generator = np.random.default_rng(seed)
        self._memory: Memory = None

    def begin(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; a seed begins a new game, even where the last one goes on."""
        if options.get("seed") is not None and self._game_goes_on:
            self.monitor.end_episode(counted=False)
        observation, info = self.env.reset(**options)
        self._memory = self.policy.initial_memory(1)
        return observation, info

    def ask(self, observation: Any, info: dict[str, Any], step: int) -> Question:
        """What the agent would do here, and whether that is a moment to call somebody."""
        scores, self._memory = self.policy.scores(batch_of([observation]), self._memory)
        row = scores[0]
        mask = self._mask(info) if self.policy.uses_mask else None
        proposed = self._choose(row, self._generator, mask)
        return Question(observation, row, self.monitor.step(row), proposed, step)

    def end(self) -> None:
        """The episode is over; one life of a game that goes on is not all of it."""
        if not self._game_goes_on:
            self.monitor.end_episode()

    @property
    def _game_goes_on(self) -> bool:
        try:
            return bool(self.env.get_wrapper_attr("game_goes_on"))
        except AttributeError:
            return False

    def _mask(self, info: dict[str, Any]) -> Mask:
        mask = info.get("action_mask")
        if mask is None:
            try:
                mask = self.env.get_wrapper_attr("action_masks")()
            except AttributeError:
                return None
        return np.array(mask, dtype=bool)


class Overseen(gym.Wrapper[Any, Any, Any, Any]):
    """Runs the policy itself; where the monitor calls, the overseer chooses the action.

    `step()` lets the agent act; `step(action)` takes an action that was found elsewhere as the
    agent's own, e.g. in somebody else's evaluation loop. Either way `info["oversight"]` says what
    the monitor said, what the agent wanted and what was done. Without an overseer nothing is
    changed, only watched. Margins made for another policy are refused.
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
        """`seed`: of the agent's own random choices, where its actions are sampled."""
        super().__init__(env)
        self.monitor = monitor
        self.overseer = overseer
        self._agent = _Agent(env, policy, monitor, seed)
        self._question: Question | None = None

    @property
    def question(self) -> Question:
        """What the agent is about to do; the next `step()` does it, or what the overseer says."""
        if self._question is None:
            raise InvalidInput("the episode has not begun or has ended; reset the environment")
        return self._question

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that has not ended does not count for drift."""
        if self._question is not None:
            self.monitor.end_episode(counted=False)
        observation, info = self._agent.begin(**options)
        self._question = self._agent.ask(observation, info, 0)
        return observation, info

    def step(self, action: Any = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Let the agent, or whoever oversees it, act once."""
        question = self.question
        proposed = question.proposed if action is None else action
        answer, asked = None, False
        if self.overseer is not None:
            asked = question.decision.call or bool(getattr(self.overseer, "sees_all", False))
        if self.overseer is not None and asked:
            answer = self.overseer(
                question.observation, question.scores, question.decision, self.env
            )
        taken = proposed if answer is None else answer
        observation, reward, terminated, truncated, info = self.env.step(taken)
        said = _oversight_info(question, proposed, taken, asked=asked)
        if terminated or truncated:
            self._question = None
            self._agent.end()
        else:
            self._question = self._agent.ask(observation, info, question.step + 1)
        return observation, reward, terminated, truncated, {**info, "oversight": said}


def oversee(
    env: Env,
    policy: Any,
    monitor: Monitor,
    *,
    seed: int | None = None,
    only_calls: bool = False,
) -> Generator[Question, Any, Outcome]:
    """One episode as a plain generator: yields each decision before it is acted upon.

    Send an action to overrule the agent; going on without one lets it act. `only_calls` yields
    only where the monitor calls. The generator returns how the episode went.
    """
    agent = _Agent(env, policy, monitor, seed)
    observation, info = agent.begin(seed=seed)
    total, step, calls, called, overruled = 0.0, 0, 0, 0, 0
    terminated = truncated = whole = False
    try:
        while not (terminated or truncated):
            question = agent.ask(observation, info, step)
            decision = question.decision
            answer = (yield question) if decision.call or not only_calls else None
            taken = question.proposed if answer is None else answer
            observation, reward, terminated, truncated, info = env.step(taken)
            total += float(reward)
            step += 1
            calls += decision.began
            called += decision.call
            overruled += not np.array_equal(taken, question.proposed)
        whole = True
    finally:
        if whole:
            agent.end()
        else:  # given up half-way
            monitor.end_episode(counted=False)
    return Outcome(step, total, terminated, truncated, calls, called, overruled)


def _oversight_info(
    question: Question, proposed: Any, taken: Any, *, asked: bool
) -> dict[str, Any]:
    """What `info["oversight"]` holds."""
    decision = question.decision
    return {
        "margin": decision.margin,
        "proxy": decision.proxy,
        "call": decision.call,
        "began": decision.began,
        "outside": decision.outside,
        "void": decision.void,
        "why": decision.why,
        "asked": asked,
        "proposed": proposed,
        "taken": taken,
        "overruled": not np.array_equal(taken, proposed),
    }
