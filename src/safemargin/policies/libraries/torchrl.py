"""Policies of TorchRL: actors and Q-value modules over TensorDicts."""

from __future__ import annotations

import copy
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra, PolicyFault, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.checks import same_kind

try:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, TensorDictModuleBase, set_interaction_type
except ImportError as error:
    raise MissingExtra("a TorchRL policy", extra="torchrl") from error

from safemargin.policies.torch import gaussian_or_logits, module_identity, one_thread


class TorchrlPolicy(BatchedPolicy):
    """Takes scores from a TensorDict module, which is given observations under its own keys.

    QValueActor            q         (the key `action_value`)
    ProbabilisticActor     logits for a categorical, gaussian for a Normal distribution
    … with TanhNormal      actions   (its deterministic action)
    Actor, TanhModule, …   actions
    """

    def __init__(
        self,
        module: Any,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        self.description = description or f"{type(module).__name__} of TorchRL"
        self.module = copy.deepcopy(module).to("cpu").eval()
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self.keys = [key for key in module.in_keys if isinstance(key, str)]
        if any("recurrent" in key or key in ("hidden", "is_init") for key in self.keys):
            raise InvalidInput(
                f"policy {self.description}: recurrent modules of TorchRL are not supported; "
                "export it to ONNX with its memory as an input and an output"
            )
        if len(self.keys) < len(module.in_keys) or not self.keys:
            raise InvalidInput(
                f"policy {self.description}: expected in_keys that are names of observations, got "
                f"{module.in_keys}; export it to ONNX"
            )
        self.kind = self._kind()
        same_kind(self.kind, kind, self.description)
        self.identity = identity or module_identity(self.module)

    def _kind(self) -> ScoreKind:
        if "action_value" in self.module.out_keys:
            return "q"
        classes = [getattr(each, "distribution_class", None) for each in self.module.modules()]
        name = next((each.__name__ for each in classes if each is not None), "")
        kinds: dict[str, ScoreKind] = {
            "Categorical": "logits", "OneHotCategorical": "logits", "MaskedCategorical": "logits",
            "Normal": "gaussian", "IndependentNormal": "gaussian", "TanhNormal": "actions",
            "TruncatedNormal": "actions", "Delta": "actions", "TanhDelta": "actions",
        }  # fmt: skip
        if not name and "action" in self.module.out_keys:
            return "actions"
        if name not in kinds:
            raise InvalidInput(
                f"policy {self.description}: the distribution {name or 'of its actor'} is not "
                f"known; known: {', '.join(kinds)}; export it to ONNX"
            )
        return kinds[name]

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        given = observations if isinstance(observations, dict) else {self.keys[0]: observations}
        rows = batch_size(observations)
        failure = f"policy {self.description}: the module (keys {', '.join(self.keys)}) failed:"
        with errors_as(PolicyFault, failure), torch.no_grad(), one_thread():
            tensors = {name: _tensor(array) for name, array in given.items()}
            batch = TensorDict(tensors, batch_size=[rows])
            if self.kind in ("logits", "gaussian"):
                return gaussian_or_logits(self.module.get_dist(batch)).numpy(), None
            with set_interaction_type(InteractionType.DETERMINISTIC):
                found = self.module(batch)
            key = "action_value" if self.kind == "q" else "action"
            return found[key].reshape(rows, -1).numpy(), None


def is_torchrl(value: Any) -> bool:
    """Whether an object is a module over TensorDicts."""
    return isinstance(value, TensorDictModuleBase)


def _tensor(array: Any) -> Any:
    tensor = torch.tensor(array)
    return tensor.float() if tensor.is_floating_point() else tensor
