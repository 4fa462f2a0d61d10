"""Policies of Tianshou 2 as they are, from memory or from files that `torch.save` wrote whole.

Such a file is a pickle, which can run any code: load only files whose origin you trust.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.errors import InvalidInput, MissingExtra, PolicyFault, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, checked_fixed_batch
from safemargin.policies.checks import same_kind

try:
    import torch
    from tianshou.algorithm.algorithm_base import Algorithm, Policy
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.modelfree.redq import REDQPolicy
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.modelfree.sac import SACPolicy
    from tianshou.data import Batch
except ImportError as error:
    raise MissingExtra("a Tianshou policy", extra="tianshou") from error

from safemargin.policies.torch import gaussian_or_logits, module_identity, one_thread


class TianshouPolicy(BatchedPolicy):
    """Takes scores from a Tianshou policy; actions are bounded and scaled as it does itself.

    DQN, C51, QR-DQN, …   q         (expected over atoms or quantiles)
    PPO, A2C, …           logits for Discrete actions, gaussian for Box actions
    SAC, TD3, DDPG, …     actions   (its deterministic ones)

    The policy is copied: training it further changes nothing here. It acts as Tianshou evaluates
    it: greedily, unless it was built with `eps_inference` or without `deterministic_eval`.
    """

    def __init__(
        self,
        policy: Any,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        policy = policy.policy if isinstance(policy, Algorithm) else policy
        self.description = description or f"{type(policy).__name__} of Tianshou"
        self.policy: Any = copy.deepcopy(policy).to("cpu").eval()
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self.kind = self._kind()
        same_kind(self.kind, kind, self.description)
        if self.kind in ("logits", "gaussian") and not getattr(policy, "deterministic_eval", True):
            self.usual_choice = "sampled"
        if self.kind == "q" and policy.eps_inference > 0:
            self.usual_choice, self.usual_epsilon = "epsilon-greedy", float(policy.eps_inference)
        space = policy.action_space
        scaling = f"{policy.action_scaling} {policy.action_bound_method} {space}"
        self.identity = identity or f"{module_identity(self.policy)}"
        if identity is None and isinstance(space, gym.spaces.Box):
            from safemargin.policies.identity import weights_identity

            self.identity = weights_identity([self.identity, scaling], {})

    def _kind(self) -> ScoreKind:
        space = self.policy.action_space
        if isinstance(self.policy, DiscreteQLearningPolicy) and isinstance(
            space, gym.spaces.Discrete
        ):
            return "q"
        if isinstance(space, gym.spaces.Discrete):
            return "logits"
        if not isinstance(space, gym.spaces.Box):
            raise InvalidInput(
                f"policy {self.description}: expected a policy over Discrete or Box actions, got "
                f"{space}; export it to ONNX"
            )
        bounded = self.policy.action_bound_method == "tanh"
        normal = isinstance(self.policy, ProbabilisticActorPolicy) and not bounded
        return "gaussian" if normal and not _squashes(self.policy) else "actions"

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        with torch.no_grad(), one_thread():
            found = self.policy(Batch(obs=observations, info=Batch()))
            if getattr(found, "state", None) is not None:
                raise InvalidInput(
                    f"policy {self.description}: recurrent policies of Tianshou are not supported; "
                    "export it to ONNX with its memory as an input and an output"
                )
            if self.kind == "q":
                return self._values(found), None
            if self.kind == "logits":
                return gaussian_or_logits(found.dist).numpy(), None
            if self.kind == "gaussian":
                return self._in_space(gaussian_or_logits(found.dist).numpy()), None
            acts = found.dist.mode if _has_mode(found) else found.act
            if _squashes(self.policy):
                acts = torch.tanh(acts)
            return self.policy.map_action(acts.cpu().numpy()).reshape(len(acts), -1), None

    def _values(self, found: Any) -> Any:
        """Return the Q values by which the policy chose its action."""
        if "fractions" in found:  # FQF's quantiles weigh differently
            taus = found.fractions.taus
            values = ((taus[:, 1:] - taus[:, :-1]).unsqueeze(1) * found.logits).sum(2)
        else:
            values = self.policy.compute_q_value(found.logits, None)
        if not np.array_equal(values.argmax(dim=1).cpu().numpy(), found.act):
            raise PolicyFault(
                f"policy {self.description}: does not take the action of the greatest Q value, so "
                "that it would be another agent here; export what it acts by to ONNX"
            )
        return values.cpu().numpy()

    def _in_space(self, scores: Any) -> Any:
        """Map the Gaussian over [−1, 1] to the environment's actions, where the policy does so."""
        if not self.policy.action_scaling:
            return scores
        low, high = (
            each.reshape(-1)
            for each in (self.policy.action_space.low, self.policy.action_space.high)
        )
        mean = low + (high - low) * (scores[:, 0] + 1.0) / 2.0
        return np.stack([mean, scores[:, 1] + np.log((high - low) / 2.0)], axis=1)


def is_tianshou(value: Any) -> bool:
    """Whether an object is a policy or an algorithm of Tianshou 2."""
    return isinstance(value, Policy | Algorithm)


def load_tianshou(text: str, **options: Any) -> TianshouPolicy:
    """Return the policy in a file that `torch.save(policy, …)` wrote (this unpickles it)."""
    path = Path(text).expanduser()
    if "normalize" in options:
        raise InvalidInput(
            f"policy tianshou:{text}: VecNormalize statistics belong to Stable-Baselines3 models; "
            "put the normalisation into the environment"
        )
    if not path.is_file():
        raise InvalidInput(f"policy tianshou:{text}: there is no such file")
    with errors_as(InvalidInput, f"policy tianshou:{text}: cannot be loaded:"):
        found = torch.load(path, map_location="cpu", weights_only=False)
    if not is_tianshou(found):
        raise InvalidInput(
            f"policy tianshou:{text}: holds a {type(found).__name__}, not a whole policy; save it "
            "with torch.save(algorithm.policy, FILE), or write a function that builds the policy, "
            "loads its weights and returns it ('file.py:function')"
        )
    return TianshouPolicy(found, **options, description=f"tianshou:{path}")


def _squashes(policy: Any) -> bool:
    """Whether a policy squashes its own Gaussian, as SAC does."""
    return isinstance(policy, SACPolicy | REDQPolicy)


def _has_mode(found: Any) -> bool:
    return getattr(found, "dist", None) is not None
