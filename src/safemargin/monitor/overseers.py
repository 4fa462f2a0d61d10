"""Who acts when a monitor calls: another policy, a lookahead in the simulator, or a person."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.records import Array
from safemargin.core.seeding import Purpose, stream
from safemargin.core.settings import Settings
from safemargin.criticality.batch import action_returns
from safemargin.criticality.repeatable import jittered
from safemargin.criticality.rollouts import Point, Runner
from safemargin.environments import SnapshotSimulator
from safemargin.errors import InvalidInput
from safemargin.monitor.decisions import Decision
from safemargin.policies import load_policy
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy, batch_of

Env = gym.Env[Any, Any]


class OtherPolicy:
    """Another policy acts greedily; it must not be recurrent, because it sees only some steps."""

    def __init__(self, policy: Any, *, kind: Any = None) -> None:
        why_not = " and would have to see every step; an overseer is asked only during calls"
        self.policy = _load_without_memory(policy, kind, why_not)

    def __call__(self, observation: Any, scores: Array, decision: Decision, env: Env) -> Any:
        rows, _ = self.policy.scores(batch_of([observation]), None)
        return PolicyActions(env.action_space, self.policy.kind, Settings())(rows[0])


def _load_without_memory(policy: Any, kind: Any, why_not: str) -> Policy:
    loaded = load_policy(policy, kind=kind)
    if loaded.initial_memory(1) is not None:
        raise InvalidInput(f"policy {loaded.description} is recurrent{why_not}")
    return loaded


class Lookahead:
    """Tries each action in the environment itself, follows the policy from there, takes the best.

    The state is saved before and restored afterwards, so the environment must be one whose
    snapshots the doctor trusts. Where the environment is random, `trials` futures of each action
    are tried, the same for every action; the real future is none of them. Ties go to the agent's
    own action.

    In a deterministic environment a lookahead knows the future, luck included. With a `jitter`, the
    agent takes a random action with this probability in the futures that are tried, and the action
    taken is the one that is best on average over `trials` of them, as for a person who sees where
    things lead but not every detail.
    """

    def __init__(
        self,
        policy: Any,
        *,
        steps: int = 50,
        gamma: float = 0.99,
        trials: int = 1,
        jitter: float = 0.0,
        kind: Any = None,
        seed: int = 0,
    ) -> None:
        if steps < 1 or trials < 1:
            raise InvalidInput(
                f"a lookahead needs at least 1 step and 1 trial, got {steps} and {trials}"
            )
        why_not = "; a lookahead does not know its memory"
        self.policy = _load_without_memory(policy, kind, why_not)
        if not 0 <= jitter < 1:
            raise InvalidInput(f"the jitter is a probability from 0 to below 1, got {jitter:g}")
        self._trials, self._jitter = trials, jitter
        # The horizon is where γ^h falls to the accepted error.
        self._settings = Settings(
            gamma=gamma, n_values=(1,), horizon_error=gamma ** (steps - 0.5), seed=seed
        )
        self._asked = 0
        self.returns: Array = np.zeros(0)  # [actions] at the last call

    def __call__(self, observation: Any, scores: Array, decision: Decision, env: Env) -> Any:
        space = env.action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise InvalidInput(f"a lookahead tries each of a Discrete space's actions, not {space}")
        simulator = SnapshotSimulator(env)
        simulator.observation, simulator.ended = observation, False
        plain = Runner(simulator, self.policy, self._settings)
        runner = jittered(plain, self._jitter) if self._jitter else plain
        point = Point(simulator.save(), None)
        self._asked += 1
        try:
            futures = [
                action_returns(runner, point, environment=future, policy=slips)
                for future, slips in zip(self._futures(), self._slips(), strict=True)
            ]
        finally:
            simulator.restore(point.snapshot)
        self.returns = np.mean(futures, axis=0)
        own = int(plain.choose(scores, None, None)) - int(space.start)
        best = int(np.argmax(self.returns))
        if self.returns[own] >= self.returns[best]:
            best = own
        return int(space.start) + best

    def _futures(self) -> list[Callable[[], np.random.Generator] | None]:
        """Return the random stream of each of several futures; of one, the environment's own."""
        if self._trials == 1:
            return [None]
        key = self._settings.seed, Purpose.TRIAL_ENVIRONMENT, self._asked
        return [partial(stream, *key, number) for number in range(self._trials)]

    def _slips(self) -> list[Callable[[], np.random.Generator] | None]:
        """Return the random stream of the agent's slips in each future."""
        if not self._jitter:
            return [None] * self._trials
        key = self._settings.seed, Purpose.JITTER, self._asked
        return [partial(stream, *key, number) for number in range(self._trials)]


class Terminal:
    """Shows margin and scores to a person at the keyboard, and asks for an action."""

    def __init__(
        self, *, ask: Callable[[str], str] = input, show: Callable[[str], Any] | None = None
    ) -> None:
        self._ask = ask
        self._show = show or (lambda text: print(text, file=sys.stderr, flush=True))

    def __call__(self, observation: Any, scores: Array, decision: Decision, env: Env) -> Any:
        space = env.action_space
        self._show(f"call: {decision.why}")
        if isinstance(space, gym.spaces.Discrete):
            names = action_names(env, int(space.n))
            start = int(space.start)
            for index, name in enumerate(names):
                score = f"{scores[index]:.4g}" if np.ndim(scores) == 1 else ""
                self._show(f"  {start + index:>3}  {name:<12} {score}")
        else:
            self._show(f"  actions: {space}; scores {np.round(scores, 4).tolist()}")
        while True:
            try:
                text = self._ask("action (Enter: the agent's own) > ").strip()
            except EOFError:
                text = ""
            if not text:
                return None
            action = _read_action(text, space)
            if action is not None:
                return action
            self._show(f"{text!r} is not an action of {space}")


def action_names(env: Env, count: int) -> list[str]:
    """Return the environment's names of its actions, [count]; empty where it has none."""
    try:
        names = [str(name) for name in env.get_wrapper_attr("get_action_meanings")()]
    except AttributeError:
        return [""] * count
    return names if len(names) == count else [""] * count


def _read_action(text: str, space: gym.Space[Any]) -> Any:
    """Return the action that a text stands for; None where it is none."""
    try:
        if isinstance(space, gym.spaces.Discrete):
            action: Any = int(text)
        else:
            values = [float(part) for part in text.replace(",", " ").split()]
            action = np.array(values, dtype=space.dtype).reshape(space.shape or ())
    except ValueError:
        return None
    return action if space.contains(action) else None
