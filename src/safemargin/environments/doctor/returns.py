"""How a policy acts and what it earns: what its user recognises the right agent by."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.core.settings import Settings
from safemargin.core.text import counted
from safemargin.environments.simulator import Simulator
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy, batch_of
from safemargin.policies.batching import ask

EPISODES = 5
MOST_STEPS = 20_000
"""Steps in all episodes together; an episode that does not end within them is not counted."""
CONFIDENCE = 0.95


class UnlikeTraining(UserWarning):
    """A policy earns clearly less than it did at the end of its training."""


def settings_for(policy: Policy | None, settings: Settings | Mapping[str, Any] | None) -> Settings:
    """Return settings in which the policy acts as its library has it, unless they say otherwise."""
    own = None if policy is None else policy.usual_choice
    usual, epsilon = own or "greedy", 0.0 if policy is None else policy.usual_epsilon
    if isinstance(settings, Settings):
        chosen = settings
    else:
        given = {"action_choice": usual, **(settings or {})}
        if given["action_choice"] == usual == "epsilon-greedy":
            given["epsilon"] = given.get("epsilon") or epsilon
        chosen = Settings.from_mapping(given)
    if policy is not None and own not in (None, chosen.action_choice):
        warnings.warn(
            f"policy {policy.description}: acts {chosen.action_choice} here, where its own "
            f"library's evaluation has it act {usual}; its results will differ",
            UnlikeTraining,
            stacklevel=3,
        )
    return chosen


@dataclass(frozen=True, slots=True)
class PlayedReturns:
    """Undiscounted returns of whole episodes, beside those remembered from training."""

    returns: tuple[float, ...]
    trained: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def lowest_expected(self) -> float | None:
        """Return the lower 95 % limit of the mean return, if this is the agent that was trained.

        The limit for the mean of new episodes drawn like those remembered from training; None
        where fewer than two are remembered.
        """
        if len(self.trained) < 2 or not self.returns:
            return None
        from scipy.special import stdtrit  # here: scipy is slow to import

        spread = float(np.std(self.trained, ddof=1))
        width = spread * math.sqrt(1 / len(self.trained) + 1 / len(self.returns))
        return float(np.mean(self.trained) - stdtrit(len(self.trained) - 1, CONFIDENCE) * width)

    @property
    def unlike_training(self) -> bool:
        """Whether the policy does clearly worse here than at the end of its training."""
        limit = self.lowest_expected
        return limit is not None and self.mean < limit

    def __str__(self) -> str:
        if not self.returns:
            return f"no episode ended within {MOST_STEPS:,} steps, so there is no mean return"
        text = f"mean return over {counted(len(self.returns), 'episode')}: {self.mean:.4g}"
        if self.trained:
            text += (
                f"; the model file remembers {np.mean(self.trained):.4g} from its last "
                + counted(len(self.trained), "training episode")
            )
        if self.unlike_training:
            text += (
                f", and at least {self.lowest_expected:.4g} was expected: this may not be "
                "the agent that was trained. Check its normalisation (--normalize), the wrappers "
                "and arguments of the environment, and how rewards are counted"
            )
        return text


def play_returns(
    simulator: Simulator,
    policy: Policy,
    settings: Settings,
    *,
    episodes: int = EPISODES,
    most_steps: int = MOST_STEPS,
) -> PlayedReturns:
    """Play whole episodes as the settings let the policy act, without a random opening."""
    actions = PolicyActions(simulator.env.action_space, policy.kind, settings)
    generator = stream(settings.seed, Purpose.DOCTOR, 3)
    returns: list[float] = []
    steps_left = most_steps
    for index in range(episodes):
        simulator.reset(environment_seed(settings.seed, 2_000_000, index))
        memory = policy.initial_memory(1)
        total = 0.0
        while not simulator.ended and steps_left > 0:
            scores, memory = ask(policy, batch_of([simulator.observation]), memory)
            mask = simulator.mask if policy.uses_mask else None
            total += float(simulator.step(actions(scores[0], generator, mask)).reward)
            steps_left -= 1
        if not simulator.ended:
            break
        returns.append(total)
    return PlayedReturns(tuple(returns), policy.trained_returns)
