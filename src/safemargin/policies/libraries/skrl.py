"""Agents of skrl, with the preprocessors of their observations."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.errors import InvalidInput, MissingExtra, PolicyFault, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, checked_fixed_batch
from safemargin.policies.checks import same_kind
from safemargin.policies.identity import weights_identity

try:
    import torch
    from skrl.agents.torch import Agent
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin
except ImportError as error:
    raise MissingExtra("a skrl agent", extra="skrl") from error

from safemargin.policies.torch import module_identity, one_thread


class SkrlPolicy(BatchedPolicy):
    """Takes scores from the model of an agent that acts, behind the agent's own preprocessor.

    DQN, DDQN              q
    PPO, A2C, TRPO, …      logits for Discrete actions, gaussian for Box actions
    TD3, DDPG, …           actions
    SAC                    gaussian  (greedily: its mean action, as skrl evaluates it)

    Model and preprocessor are copied: training the agent further changes nothing here.
    """

    def __init__(
        self,
        agent: Any,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        self.description = description or f"{type(agent).__name__} of skrl"
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        role = "policy" if agent.models.get("policy") is not None else "q_network"
        self.model, self.role = agent.models.get(role), role
        if self.model is None:
            raise InvalidInput(
                f"policy {self.description}: expected an agent with a model called 'policy' or "
                "'q_network'; export it to ONNX"
            )
        if "rnn" in self.model.get_specification():
            raise InvalidInput(
                f"policy {self.description}: recurrent models of skrl are not supported; export it "
                "to ONNX with its memory as an input and an output"
            )
        self.model = _copied(self.model).to("cpu").eval()
        self.preprocessor = agent.checkpoint_modules.get("observation_preprocessor")
        self.kind = self._kind()
        same_kind(self.kind, kind, self.description)
        parts = [module_identity(self.model), self.kind]
        if self.preprocessor is not None:
            self.preprocessor = copy.deepcopy(self.preprocessor).to("cpu").eval()
            parts.append(module_identity(self.preprocessor))
        self.identity = identity or weights_identity(parts, {})

    def _kind(self) -> ScoreKind:
        space = self.model.action_space
        if self.role == "q_network":
            return "q"
        if isinstance(self.model, CategoricalMixin):
            return "logits"
        if isinstance(space, gym.spaces.Box) and isinstance(self.model, GaussianMixin):
            return "gaussian"
        if isinstance(space, gym.spaces.Box) and isinstance(self.model, DeterministicMixin):
            return "actions"
        raise InvalidInput(
            f"policy {self.description}: expected a categorical, Gaussian or deterministic model "
            f"over Discrete or Box actions, got {type(self.model).__name__} over {space}; export "
            "it to ONNX"
        )

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        failure = f"policy {self.description}: the model could not score observations:"
        with errors_as(PolicyFault, failure), torch.no_grad(), one_thread():
            seen = torch.tensor(np.asarray(observations, np.float32)).flatten(1)
            if self.preprocessor is not None:
                seen = self.preprocessor(seen)
            given = {"observations": seen, "states": None}
            with torch.random.fork_rng(devices=[]):  # a stochastic model draws, too
                found, more = self.model.act(given, role=self.role)
            if self.kind == "logits":
                return self.model.distribution(role=self.role).logits.numpy(), None
            if self.kind == "gaussian":
                mean = more["mean_actions"]
                deviation = more["log_std"].expand_as(mean)
                return torch.stack([mean, deviation], dim=1).numpy(), None
            return found.reshape(len(found), -1).numpy(), None


def _copied(model: Any) -> Any:
    """Copy a model without the distribution of its last batch, whose tensors cannot be copied."""
    held = {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, torch.distributions.Distribution)
    }
    try:
        for name in held:
            setattr(model, name, None)
        return copy.deepcopy(model)
    finally:
        for name, value in held.items():
            setattr(model, name, value)


def is_skrl(value: Any) -> bool:
    """Whether an object is an agent of skrl in PyTorch."""
    return isinstance(value, Agent)
