"""Who acts once the mistakes are over: the agent itself, or a reference that takes over.

Against a reference, the loss at a moment is what the reference would have earned from there, less
what it earns after the mistakes (the paper's appendix A, where the reference is optimal). So
mistakes that the agent itself would not have recovered from may cost nothing, and a state that it
has spoilt already is judged by what could still be made of it.

To add one, write a `Reference`, name it in `make_reference`, and in `core.measured`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from safemargin.core.measured import parse_reference
from safemargin.core.settings import Settings
from safemargin.environments.simulator import Simulator
from safemargin.errors import InvalidInput, SafemarginError
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy, batch_of
from safemargin.policies.batching import ask
from safemargin.policies.loading import load_policy

if TYPE_CHECKING:  # which import this module
    from safemargin.criticality.rollouts import Runner

NOT_RANDOM = (
    "reference {reference!r} tries actions in one future, and where the environment or the agent "
    "is random that is not the one that comes; it takes a deterministic environment and a greedy "
    "agent. Name a policy instead"
)


class Reference(ABC):
    """Acts in place of the agent after the mistakes, and in the run they are compared with."""

    looks_ahead: bool = False
    """Whether it tries actions, for which nothing may be random."""
    identity: str | None = None
    """A hash of the policy behind it; None where its text says all."""

    def __init__(self, text: str) -> None:
        self.text = text
        """As it is written, e.g. 'lookahead:50'."""

    @abstractmethod
    def check(self, env: gym.Env[Any, Any], agent: Policy) -> None:
        """Raise InvalidInput if it cannot take over from this agent in this environment."""

    def widen(self, space: gym.Space[Any], rows: int) -> None:
        """Find out how many observations can be scored at once."""
        return

    @abstractmethod
    def actions(
        self, runner: Runner, simulators: Sequence[Simulator]
    ) -> tuple[list[Any], list[int]]:
        """Return its action in each simulator, and the steps that finding it took."""


class ReferencePolicy(Reference):
    """Another policy, by its highest score."""

    def __init__(self, text: str, policy: Policy | None = None) -> None:
        super().__init__(text)
        self.policy = policy or load_policy(text)
        self.identity = self.policy.identity
        if self.policy.initial_memory(1) is not None:
            raise InvalidInput(
                f"reference {text!r}: this policy has a memory, which would have to follow the "
                "whole episode; name a policy without one"
            )

    def check(self, env: gym.Env[Any, Any], agent: Policy) -> None:
        try:
            self.policy.check(env)
            self._choose = PolicyActions(env.action_space, self.policy.kind, Settings())
        except SafemarginError as error:
            raise InvalidInput(
                f"reference {self.text!r} cannot take over from the agent: {error}"
            ) from error

    def widen(self, space: gym.Space[Any], rows: int) -> None:
        self.policy.widen(space, rows)

    def actions(
        self, runner: Runner, simulators: Sequence[Simulator]
    ) -> tuple[list[Any], list[int]]:
        rows, _ = ask(self.policy, batch_of([each.observation for each in simulators]), None)
        masked = self.policy.uses_mask
        taken = [
            self._choose(row, None, each.mask if masked else None)
            for row, each in zip(rows, simulators, strict=True)
        ]
        return taken, [0] * len(taken)


class Lookahead(Reference):
    """Tries each action, lets the agent follow for some steps, and takes what earned most reward.

    It maximises discounted reward, whatever the signal. Of equal actions, it takes the agent's own,
    or else the first.
    """

    looks_ahead = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.steps = int(parse_reference(text).number)

    def check(self, env: gym.Env[Any, Any], agent: Policy) -> None:
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise InvalidInput(
                f"reference {self.text!r} tries every action, which takes discrete ones, and the "
                f"action space here is {env.action_space}; name a policy instead"
            )
        if agent.initial_memory(1) is not None:
            raise InvalidInput(
                f"reference {self.text!r} has the agent follow, whose memory of the episode it "
                "does not know; name a policy instead"
            )

    def actions(
        self, runner: Runner, simulators: Sequence[Simulator]
    ) -> tuple[list[Any], list[int]]:
        found = [self._best(runner, simulator) for simulator in simulators]
        return [action for action, _ in found], [steps for _, steps in found]

    def _best(self, runner: Runner, simulator: Simulator) -> tuple[Any, int]:
        from safemargin.criticality.batch import first_actions
        from safemargin.criticality.rollouts import Point

        # The horizon is where γ^h falls to the accepted error.
        gamma = runner.settings.gamma
        settings = Settings(gamma=gamma, n_values=(1,), horizon_error=gamma ** (self.steps - 0.5))
        alone = replace(
            runner, simulator=simulator, siblings=(), settings=settings, proxies=(), signals=(),
            perturbation=None, reference=None,
        )  # fmt: skip
        space, mask = simulator.env.action_space, simulator.mask
        assert isinstance(space, gym.spaces.Discrete)
        point = Point(simulator.save(), None)
        trials = first_actions(alone, point)
        simulator.restore(point.snapshot)
        returns = np.array([alone.returns(trial.rollout.all_rewards())[0] for trial in trials])
        if mask is not None:
            returns = np.where(mask, returns, -np.inf)
        (row,), _ = alone.scores([simulator.observation], [None])
        own = int(alone.choose(row, None, mask)) - int(space.start)
        best = own if returns[own] == returns.max() else int(np.argmax(returns))
        return int(space.start) + best, sum(trial.steps for trial in trials)


def make_reference(given: str | Reference | Policy) -> Reference:
    """Return the reference that a text or a policy stands for."""
    if isinstance(given, Reference):
        return given
    if isinstance(given, Policy):
        return ReferencePolicy(given.description, given)
    kinds: dict[str, Callable[[str], Reference]] = {
        "lookahead": Lookahead,
        "policy": ReferencePolicy,
    }
    return kinds[parse_reference(given).kind](given)
