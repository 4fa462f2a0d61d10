"""What an attacker does at an attacked step: a random action, a bad one, or a false observation.

To add one, write a class with `action`, and name it in `make_attack`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.core.seeding import generator_from
from safemargin.criticality.batch import action_returns
from safemargin.criticality.rollouts import Point, Runner
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.policies.base import Memory

ATTACKS = ("random", "worst", "exact", "observation:EPS")
"""The attacks as they are written."""

TRIES = 32
"""False observations tried at each attacked step."""


class Attack(ABC):
    """What takes the place of the agent's action at an attacked step."""

    words: str
    """What it is, for tables."""

    def check(self, runner: Runner, *, deterministic: bool) -> None:
        """Raise InvalidInput where it makes no sense."""
        return

    @abstractmethod
    def action(
        self, runner: Runner, row: npt.NDArray[np.float32], memory: Memory, uniforms: Floats
    ) -> Any:
        """Return the action taken, given the policy's scores and its memory before them."""


class RandomAction(Attack):
    """A uniformly random action."""

    words = "a random action"

    def action(
        self, runner: Runner, row: npt.NDArray[np.float32], memory: Memory, uniforms: Floats
    ) -> Any:
        return runner.random_actions(uniforms, runner.simulator.mask)


class LeastScore(Attack):
    """The action with the least score: the worst one in the agent's own eyes."""

    words = "the action with the least score"

    def check(self, runner: Runner, *, deterministic: bool) -> None:
        if runner.policy.kind not in ("q", "logits"):
            raise InvalidInput(
                f"attack 'worst' takes the action with the least score, and scores of kind "
                f"{runner.policy.kind!r} have none; take random or observation:EPS"
            )

    def action(
        self, runner: Runner, row: npt.NDArray[np.float32], memory: Memory, uniforms: Floats
    ) -> Any:
        mask, space = runner.simulator.mask, runner.simulator.env.action_space
        assert isinstance(space, gym.spaces.Discrete)
        legal = row if mask is None else np.where(mask, row, np.inf)
        return int(space.start + np.argmin(legal))


class LeastReturn(Attack):
    """The action after which the agent itself earns least: the worst one, by trying them all."""

    words = "the action that costs most, by trying all of them"

    def check(self, runner: Runner, *, deterministic: bool) -> None:
        discrete = isinstance(runner.simulator.env.action_space, gym.spaces.Discrete)
        if not (discrete and deterministic and runner.simulator.way == "snapshot"):
            raise InvalidInput(
                "attack 'exact' tries every action at each attacked step, which takes discrete "
                "actions, snapshots, a deterministic environment and a greedy policy; take worst "
                "or random"
            )

    def action(
        self, runner: Runner, row: npt.NDArray[np.float32], memory: Memory, uniforms: Floats
    ) -> Any:
        simulator, space = runner.simulator, runner.simulator.env.action_space
        assert isinstance(space, gym.spaces.Discrete)
        point, mask = Point(simulator.save(), memory), simulator.mask
        returns = action_returns(runner, point)
        simulator.restore(point.snapshot)
        legal = returns if mask is None else np.where(mask, returns, np.inf)
        return int(space.start + np.argmin(legal))


class FalseObservation(Attack):
    """The agent sees what differs from the truth by at most ε of each dimension's range.

    Of some random false observations, it is the one that makes the agent's own action look worst.
    No gradient is needed.
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.words = (
            f"the worst of {TRIES} false observations that differ by up to {epsilon:g} of the range"
        )

    def check(self, runner: Runner, *, deterministic: bool) -> None:
        space, kind = runner.simulator.env.observation_space, runner.policy.kind
        if not isinstance(space, gym.spaces.Box) or kind not in ("q", "logits"):
            raise InvalidInput(
                "attack 'observation' falsifies a box of numbers, for a policy that scores its "
                f"actions; the observations here are {space}, the scores of kind {kind!r}"
            )

    def action(
        self, runner: Runner, row: npt.NDArray[np.float32], memory: Memory, uniforms: Floats
    ) -> Any:
        simulator, space = runner.simulator, runner.simulator.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        truth = np.asarray(simulator.observation, np.float64)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        bounded = (low > -1e30) & (high < 1e30)  # many spaces write infinity as a large number
        reach = self.epsilon * np.where(bounded, np.where(bounded, high - low, 0.0), 1.0)
        noise = generator_from(uniforms).uniform(-1, 1, (TRIES, *truth.shape))
        false = np.clip(truth + reach * noise, low, high).astype(space.dtype)
        rows, _ = runner.scores(list(false), [memory] * TRIES)
        own = int(np.argmax(row))
        others = np.delete(rows, own, axis=1).max(axis=1)
        return runner.choose(rows[int(np.argmin(rows[:, own] - others))], None, simulator.mask)


def make_attack(text: str) -> Attack:
    """Return the attack that a text stands for."""
    name, _, argument = text.partition(":")
    plain: dict[str, Callable[[], Attack]] = {
        "random": RandomAction,
        "worst": LeastScore,
        "exact": LeastReturn,
    }
    if name in plain and not argument:
        return plain[name]()
    if name == "observation":
        try:
            epsilon = float(argument)
        except ValueError:
            epsilon = 0.0
        if 0 < epsilon <= 1:
            return FalseObservation(epsilon)
        raise InvalidInput(f"attack {text!r}: write observation:EPS, with EPS above 0 and up to 1")
    raise InvalidInput(f"attack {text!r} is unknown; {did_you_mean(text, ATTACKS)}")
