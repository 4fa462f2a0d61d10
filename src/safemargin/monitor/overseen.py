"""An environment whose agent is watched by a monitor, and where an overseer acts on calls."""

from __future__ import annotations

import contextlib
import time
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
from safemargin.monitor.caller import Caller
from safemargin.monitor.calls import Call
from safemargin.monitor.decisions import Decision
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy
from safemargin.policies.actions import Mask, PolicyActions
from safemargin.policies.base import Memory, batch_of
from safemargin.policies.features import with_value

Env = gym.Env[Any, Any]

Overseer = Callable[[Any, Array, Decision, Env], Any]
"""`overseer(observation, scores, decision, env)` returns an action; None: the agent's own.

An overseer whose `sees_all` is true is asked at every decision, not only during calls. One that has
an attribute `reward` finds there what the decision before brought.
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
    call: Call
    """Whether somebody should look: the monitor's verdict, or the caller's."""
    reward: float | None = None
    """What the decision before it brought; None at the start of an episode."""


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
    nothing is changed. With a `caller`, the overseer is asked during its calls instead of the
    monitor's. Margins made for another policy are refused.
    """

    def __init__(
        self,
        env: Env,
        policy: Any,
        monitor: Monitor,
        overseer: Overseer | None = None,
        *,
        caller: Caller | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """`seed`: for the agent's random choices, where its actions are sampled.

        `clock`: the time in seconds, for the caller.
        """
        super().__init__(env)
        self.monitor = monitor
        self.caller = caller
        self._clock = clock
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
            self._end_call()
        observation, info = self.env.reset(**options)
        self.monitor.begin_episode()
        self._memory = self._policy.initial_memory(1)
        self._ask(observation, info, 0)
        return observation, info

    def step(self, action: Any = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Let the agent, or its overseer, act once."""
        question = self.question
        proposed = question.proposed if action is None else action
        decision, call, overseer = question.decision, question.call, self.overseer
        answer, asked = None, False
        if overseer is not None and (call.on or getattr(overseer, "sees_all", False)):
            if hasattr(overseer, "reward"):
                overseer.reward = question.reward
            answer = overseer(question.observation, question.scores, decision, self.env)
            asked = True
        taken = proposed if answer is None else answer
        observation, reward, terminated, truncated, info = self.env.step(taken)
        names = ("margin", "proxy", "outside", "void")
        oversight = {name: getattr(decision, name) for name in names} | {
            "call": call.on,
            "began": call.began,
            "cause": call.cause,
            "why": call.why or decision.why,
            "asked": asked,
            "proposed": proposed,
            "taken": taken,
            "overruled": not np.array_equal(taken, proposed),
        }
        if not (terminated or truncated):
            self._ask(observation, info, question.step + 1, float(reward))
        else:
            self._question = None
            if not self._game_goes_on:  # while a game has lives left, it continues for the monitor
                self.monitor.end_episode()
                self._end_call()
        return observation, reward, terminated, truncated, {**info, "oversight": oversight}

    def _ask(
        self, observation: Any, info: dict[str, Any], step: int, reward: float | None = None
    ) -> None:
        """Work out what the agent would do here, and the monitor's verdict on it."""
        row, hidden = self._look(observation)
        mask = self._mask(info) if self._policy.uses_mask else None
        proposed = self._choose(row, self._generator, mask)
        decision: Decision = self.monitor.step(row, hidden)
        if self.caller is None:
            call = Call(decision.call, decision.began, "margin" if decision.call else "", "")
        else:
            state = None if self.caller.stuck is None else state_of(observation)
            call = self.caller.step(decision, self._clock(), reward, state)
        self._question = Question(observation, row, decision, proposed, step, call, reward)

    def _end_call(self) -> None:
        if self.caller is not None:
            self.caller.end_episode(0)

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


def state_of(observation: Any) -> int:
    """Return a number that is the same for equal observations."""
    if isinstance(observation, dict):
        return hash(tuple((name, state_of(value)) for name, value in sorted(observation.items())))
    if isinstance(observation, tuple):
        return hash(tuple(map(state_of, observation)))
    return hash(np.asarray(observation).tobytes())


def oversee(
    env: Env,
    policy: Any,
    monitor: Monitor,
    *,
    seed: int | None = None,
    only_calls: bool = False,
    caller: Caller | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Question, Any, Outcome]:
    """Run one episode as a plain generator that yields each decision before it is acted upon.

    Send an action to overrule the agent; `next` lets it act. With `only_calls`, the generator
    yields only during calls, the monitor's or the `caller`'s. It returns the episode's outcome.
    """
    watched = Overseen(env, policy, monitor, caller=caller, clock=clock, seed=seed)
    total, steps, calls, called, overruled = 0.0, 0, 0, 0, 0
    terminated = truncated = False
    try:
        watched.reset(seed=seed)
        while not (terminated or truncated):
            question = watched.question
            answer = (yield question) if question.call.on or not only_calls else None
            taken = question.proposed if answer is None else answer
            _, reward, terminated, truncated, _ = watched.step(taken)
            total += float(reward)
            steps += 1
            calls += question.call.began
            called += question.call.on
            overruled += not np.array_equal(taken, question.proposed)
    finally:
        if not (terminated or truncated):  # abandoned half-way
            monitor.end_episode(counted=False)
    return Outcome(steps, total, terminated, truncated, calls, called, overruled)
