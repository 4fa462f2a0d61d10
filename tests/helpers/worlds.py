"""Small worlds whose true criticality is known exactly, and wrong worlds that must be refused."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Outcome:
    """One possible result of an action."""

    probability: float
    state: int
    reward: float
    ends: bool = False


# transitions[state][action] → outcomes
Transitions = list[list[list[Outcome]]]


TABLES: dict[str, Transitions] = {}
"""The tables of all worlds, by hash: constant, so what saves or hashes a world leaves them out."""


class TableWorld(gym.Env[np.ndarray, int]):
    """A finite world written down as a table; observes its state one-hot."""

    def __init__(self, transitions: Transitions, *, starts: int = 1) -> None:
        self.table = hashlib.sha256(repr(transitions).encode()).hexdigest()
        TABLES[self.table] = transitions
        self.starts = starts
        count = len(transitions)
        self.observation_space = gym.spaces.Box(0, 1, (count,), np.float32)
        self.action_space = gym.spaces.Discrete(len(transitions[0]))
        self.state = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(self.starts))
        return self._observe(), {}

    def step(self, action: int) -> Any:
        outcomes = TABLES[self.table][self.state][int(action)]
        chosen = outcomes[0]
        if len(outcomes) > 1:
            drawn = self.np_random.choice(len(outcomes), p=[o.probability for o in outcomes])
            chosen = outcomes[int(drawn)]
        self.state = chosen.state
        return self._observe(), chosen.reward, chosen.ends, False, {}

    def _observe(self) -> np.ndarray:
        observation = np.zeros(len(TABLES[self.table]), np.float32)
        observation[self.state] = 1
        return observation


class Masked(gym.Env[np.ndarray, int]):
    """Actions 0, 2 and 3 are legal at even steps and pay 3, 1 and 0; at odd steps, 0 and 1 are."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(4)
    pays: ClassVar = {0: 3.0, 1: 2.0, 2: 1.0, 3: 0.0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def action_masks(self) -> np.ndarray:
        return np.array([1, 0, 1, 1] if self.steps % 2 == 0 else [1, 1, 0, 0], dtype=bool)

    def step(self, action: int) -> Any:
        assert self.action_masks()[action]
        self.steps += 1
        return np.full(1, self.steps, np.float32), self.pays[action], self.steps == 20, False, {}


def always_first(observations: np.ndarray) -> np.ndarray:
    """Scores of a policy for two actions that always prefers action 0, more so in later states."""
    sure = 1 + observations @ np.arange(observations.shape[1], dtype=np.float32)
    return np.stack([sure, np.zeros_like(sure)], axis=1).astype(np.float32)


def careless(observations: np.ndarray) -> np.ndarray:
    """Scores of a policy that prefers action 1 more often than `always_first` does."""
    scores = always_first(observations)
    scores[:, 1] += 0.9
    return scores


def exact_criticality(
    transitions: Transitions,
    *,
    state: int,
    n: int,
    gamma: float,
    horizon: int,
    sampled: bool = False,
) -> float:
    """c(t, n) of `always_first` by dynamic programming over at most `horizon` steps."""

    def value(policies: list[np.ndarray]) -> float:  # each [states, actions]
        values = np.zeros(len(transitions))
        for policy in reversed(policies):
            values = np.array(
                [
                    sum(
                        weight
                        * sum(
                            o.probability * (o.reward + (0 if o.ends else gamma * values[o.state]))
                            for o in outcomes
                        )
                        for weight, outcomes in zip(weights, actions, strict=True)
                    )
                    for weights, actions in zip(policy, transitions, strict=True)
                ]
            )
        return float(values[state])

    shape = len(transitions), len(transitions[0])
    own = np.eye(*shape)[np.zeros(shape[0], dtype=int)]
    if sampled:
        odds = np.exp(always_first(np.eye(shape[0], dtype=np.float32)).astype(float))
        own = odds / odds.sum(axis=1, keepdims=True)
    random = np.full(shape, 1 / shape[1])
    steps = min(n, horizon)
    return value([own] * horizon) - value([random] * steps + [own] * (horizon - steps))


def chain(length: int = 60, *, slip: float = 0.0) -> Transitions:
    """Walk to the right for a reward of 1 a step; action 1 ends the walk.

    With `slip`, action 0 too ends it with that probability.
    """
    table: Transitions = []
    for state in range(length):
        last = state == length - 1
        onward = Outcome(1 - slip, min(state + 1, length - 1), 1.0, ends=last)
        fall = Outcome(slip, state, 0.0, ends=True)
        table.append([[onward, fall] if slip else [onward], [Outcome(1.0, state, 0.0, ends=True)]])
    return table


def branching(length: int = 40, *, noise: float = 0.0) -> Transitions:
    """Two lanes: action 1 changes to the poor lane, from which action 0 returns after a while.

    The good lane pays more the farther one is; the poor lane pays nothing and costs now and then.
    With `noise`, any action leads to the other lane with that probability.
    """
    table: Transitions = []
    for position in range(2 * length):
        place, poor = divmod(position, 2)
        last = place == length - 1
        following = min(place + 1, length - 1) * 2
        reward = (-0.25 if place % 3 == 0 else 0.0) if poor else 0.5 + place / length
        returns = place % 5 == 0  # the ways between the lanes are open only here
        rows = []
        for action in (0, 1):
            lane = (0 if returns else poor) if action == 0 else 1
            stay = Outcome(1 - noise, following + lane, reward, ends=last)
            swap = Outcome(noise, following + 1 - lane, reward, ends=last)
            rows.append([stay, swap] if noise else [stay])
        table.append(rows)
    return table


def make_chain() -> gym.Env[Any, Any]:
    return TableWorld(chain(60), starts=5)


def make_slippery_chain() -> gym.Env[Any, Any]:
    return TableWorld(chain(60, slip=0.02), starts=5)


def make_branching() -> gym.Env[Any, Any]:
    return TableWorld(branching(40), starts=2)


class SlowWorld(TableWorld):
    """Takes its time at each step, so that there is time to interrupt it."""

    def step(self, action: int) -> Any:
        time.sleep(float(os.environ.get("SLOW_WORLD_SECONDS", "0.0002")))
        return super().step(action)


def make_slow_branching() -> gym.Env[Any, Any]:
    return SlowWorld(branching(40), starts=2)


def lean(observations: np.ndarray) -> np.ndarray:
    """Scores of a policy for CartPole: steer the cart under the pole."""
    push = observations @ np.array([[0.3], [0.5], [3.0], [1.5]], np.float32)
    return np.concatenate([-push, push], axis=1)


class Lives(gym.Wrapper[Any, Any, Any, Any]):
    """A world with several lives: an end that is not the last goes on where it was."""

    def __init__(self, env: gym.Env[Any, Any], lives: int) -> None:
        super().__init__(env)
        self.lives = self.lives_left = lives
        self.game_goes_on = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is None and self.game_goes_on:
            self.game_goes_on = False
            return self.env.reset()  # the inner world draws its next start by itself
        self.lives_left, self.game_goes_on = self.lives, False
        return self.env.reset(seed=seed)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated:
            self.lives_left -= 1
            self.game_goes_on = self.lives_left > 0
        return observation, reward, terminated, truncated, info


def make_lives() -> gym.Env[Any, Any]:
    return Lives(TableWorld(branching(40), starts=30), lives=3)


def go_right(observations: np.ndarray) -> np.ndarray:
    """Scores of a policy for FrozenLake: right along the edge, then down."""
    scores = np.zeros((len(observations), 4), np.float32)
    column = observations.reshape(-1) % 8
    scores[:, 2] = column < 7
    scores[:, 1] = column == 7
    return scores


class DrawnWorld(TableWorld):
    """A world that can be looked at: the brighter its left side, the farther its state."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, transitions: Transitions, *, starts: int = 1, render_mode: str | None = None
    ) -> None:
        super().__init__(transitions, starts=starts)
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[:, : self.state * 60 // len(TABLES[self.table]) + 1] = 200
        picture[10:30, 20:40] = self.state * 3  # tells any two states apart
        return picture

    @staticmethod
    def get_action_meanings() -> list[str]:
        return ["STAY", "LEAVE"]


class FromSeven(gym.ActionWrapper[Any, Any, Any]):
    """The same world, but its actions are numbered from 7 on."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Discrete(2, start=7)

    def action(self, action: Any) -> int:
        return int(action) - 7


def make_from_seven() -> gym.Env[Any, Any]:
    return FromSeven(TableWorld(branching(40), starts=2))


def make_drawn(render_mode: str | None = None) -> gym.Env[Any, Any]:
    return DrawnWorld(branching(40), starts=2, render_mode=render_mode)


def make_drawn_lives(render_mode: str | None = None) -> gym.Env[Any, Any]:
    return Lives(DrawnWorld(branching(40), starts=30, render_mode=render_mode), lives=3)


class RiskyRoad(gym.Env[np.ndarray, int]):
    """A road on which a mistake (action 1) costs the episode's risk, which the agent can see.

    The agent's scores depend on the other number it sees, which means nothing: the spread of its
    scores is blind to the risk. c_n is risk / 2 · (1 + γ + … + γ^(n−1)) away from the end.
    """

    LENGTH = 24

    def __init__(self, *, visible: bool = True) -> None:
        self.visible = visible
        self.observation_space = gym.spaces.Box(-5, 5, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.risk, self.noise, self.step_number = 0.0, np.zeros(0), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.risk = float(self.np_random.random() ** 3)
        self.noise = self.np_random.normal(size=self.LENGTH + 1).clip(-5, 5)
        self.step_number = 0
        return self._observe(), {}

    def step(self, action: int) -> Any:
        self.step_number += 1
        ended = self.step_number == self.LENGTH
        return self._observe(), -self.risk * int(action), ended, False, {}

    def _observe(self) -> np.ndarray:
        seen = self.risk if self.visible else 0.5
        return np.array([seen, self.noise[self.step_number]], np.float32)


def make_risky_road() -> RiskyRoad:
    return RiskyRoad()


def make_dark_road() -> RiskyRoad:
    return RiskyRoad(visible=False)


class WrongRoad(RiskyRoad):
    """A road on which the careful agent is wrong where the risk is high: action 1 earns it."""

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, (-reward if self.risk > 0.5 else reward), *rest


def make_wrong_road() -> WrongRoad:
    return WrongRoad()


def swerving(length: int = 60, *, slip: float = 0.0) -> Transitions:
    """Pays 1 for the action that fits the state: 0 in even ones, 1 in odd ones; walks on anyway.

    With `slip`, the walk ends with that probability after each step, whatever is done.
    """
    table: Transitions = []
    for state in range(length):
        last = state == length - 1
        rows = []
        for action in (0, 1):
            pay = float(action == state % 2)
            onward = Outcome(1 - slip, min(state + 1, length - 1), pay, ends=last)
            rows.append([onward, Outcome(slip, state, pay, ends=True)] if slip else [onward])
        table.append(rows)
    return table


def swerve(observations: np.ndarray) -> np.ndarray:
    """Scores of the policy that always takes the action that fits in `swerving`, surer later."""
    states = np.arange(observations.shape[1], dtype=np.float32)
    odd, sure = observations @ (states % 2), 1 + observations @ states
    return np.stack([(1 - odd) * sure, odd * sure], axis=1).astype(np.float32)


def wrong_way(observations: np.ndarray) -> np.ndarray:
    """Scores of the policy that never takes the action that fits in `swerving`."""
    return -swerve(observations)


wrong_way.kind = "logits"  # type: ignore[attr-defined]


def opposite(generator: np.random.Generator, action: int, history: Any) -> int:
    """Take the action that the agent did not mean to take."""
    return 1 - action


opposite.draws = False  # type: ignore[attr-defined]


def coin(generator: np.random.Generator, action: int, history: Any) -> int:
    """Take either of two actions with even odds."""
    return int(generator.random() < 0.5)


def make_swerving() -> gym.Env[Any, Any]:
    return TableWorld(swerving(60), starts=5)


class Costly(gym.Wrapper[Any, Any, Any, Any]):
    """A table world whose action 1 costs 2 and uses up 3 of a budget, as its info says."""

    def step(self, action: int) -> Any:
        *before, info = self.env.step(action)
        told = {"cost": 2.0 * int(action), "budget": np.array([-3 * int(action)]), "name": "costly"}
        return *before, {**info, **told}


def make_slipping() -> gym.Env[Any, Any]:
    return TableWorld(swerving(60, slip=0.05), starts=5)


def make_costly() -> gym.Env[Any, Any]:
    return Costly(TableWorld(swerving(60), starts=5))


def make_meta_world() -> gym.Env[Any, Any]:
    """A task of Meta-World with its goal in sight; its registered ids have no version."""
    import metaworld  # noqa: F401 (registers them)

    name = "reach-v3-goal-observable"
    return gym.make("Meta-World/goal_observable", env_name=name, seed=1)
