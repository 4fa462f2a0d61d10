"""How much of regret is luck: what another first action is worth if the agent slips now and then.

In a chaotic game, the best of a few futures contains luck that nobody could foresee. So each first
action is followed under several jitters: the agent takes a random action now and then, at the same
moments and the same ones after every first action. What is still better then is repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np

from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, stream
from safemargin.criticality.batch import Streams, Trial, TrialBatch
from safemargin.criticality.perturbations import UNIFORM
from safemargin.criticality.rollouts import Point, Runner
from safemargin.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Repeatable:
    """What one decision holds for an overseer who knows the future, and for one who does not."""

    regret: float
    """The best first action over the agent's own, where nothing slips: luck included."""
    judged: float | None
    """What that action is worth over the agent's own under the jitters, on average."""
    chosen: float | None
    """The best action on one half of the jitters, judged on the other half, and vice versa."""


def jittered(runner: Runner, epsilon: float) -> Runner:
    """Return the same runner with a policy that takes a random action with probability ε."""
    if not 0 < epsilon < 1:
        raise InvalidInput(f"a jitter slips with a probability between 0 and 1, got {epsilon:g}")
    if not runner.policy_actions.deterministic:
        raise InvalidInput(
            "jitters take a policy that acts greedily; one that draws its actions slips by itself"
        )
    settings = replace(runner.settings, action_choice="epsilon-greedy", epsilon=epsilon)
    return replace(runner, settings=settings)


def jittered_returns(runner: Runner, point: Point, jitters: int, keys: tuple[int, ...]) -> Floats:
    """Return the discounted return of each first action under each jitter, [jitters, actions].

    `runner` is one of `jittered`; `keys` identify the decision. Simulators stay where trials ended.
    """
    space = runner.simulator.env.action_space
    if not isinstance(space, gym.spaces.Discrete):
        raise InvalidInput(f"only discrete actions can all be tried, and this space is {space}")
    actions = int(space.n)
    trials = [
        Trial(
            np.array([[(action + 0.5) / actions]]),
            Streams(policy=stream(runner.settings.seed, Purpose.JITTER, *keys, jitter)),
        )
        for jitter in range(jitters)
        for action in range(actions)
    ]
    TrialBatch(runner, point, perturbation=UNIFORM).run(trials)
    returns = [runner.returns(trial.rollout.all_rewards())[0] for trial in trials]
    return np.array(returns).reshape(jitters, actions)


def repeatable(
    plain: Floats,  # [actions] the return of each first action where nothing slips
    returns: Floats | None,  # [jitters, actions] as `jittered_returns` gives them
    own: int,
) -> Repeatable:
    """Judge one decision; without jittered returns, only what needs none.

    Nobody overrules an action that is as good as any other: the worth is 0 then.
    """
    best = _choice(plain, own)
    regret = float(plain[best] - plain[own])
    if returns is None:
        return Repeatable(regret, 0.0 if best == own else None, None)
    if len(returns) < 2:
        raise InvalidInput(f"choosing and judging take 2 jitters or more, got {len(returns)}")
    gains = returns - returns[:, own : own + 1]  # [jitters, actions]
    halves = np.stack([gains[0::2].mean(axis=0), gains[1::2].mean(axis=0)])
    worth = [halves[1 - half][_choice(halves[half], own)] for half in (0, 1)]
    return Repeatable(regret, float(gains[:, best].mean()), float(np.mean(worth)))


def _choice(values: Floats, own: int) -> int:
    """Return the best action: the own one unless another is better by more than rounding."""
    best = int(values.argmax())
    return best if values[best] > values[own] + 1e-9 else own
