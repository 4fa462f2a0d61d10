"""PyTorch modules as policies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.errors import MissingExtra, PolicyFault, errors_as
from safemargin.policies.base import Features, Memory, Observations, ScoreKind, for_each
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.identity import weights_identity

try:
    import torch
except ImportError as error:
    raise MissingExtra("a PyTorch policy", extra="torch") from error


class TorchPolicy(BatchedPolicy):
    """Takes scores from `module(observations)`: [batch, actions], or (mean, log_std) if gaussian.

    The module is copied and put into evaluation mode: training it further changes nothing here.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        kind: ScoreKind,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        self.kind = kind
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self.module = copy.deepcopy(module).eval()
        self.identity = identity or module_identity(self.module)
        self.description = (
            description or f"{type(module).__qualname__} of {type(module).__module__}"
        )

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        with layers_watched(self.module) as seen:
            scores, after = self.evaluate(observations, memory)
        return Features(scores, after, last_hidden(seen, batch_size(observations)))

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        parameter = next(self.module.parameters(), torch.zeros((), dtype=torch.float32))
        inputs = for_each(observations, lambda array: _tensor(array, parameter))
        failure = (
            f"policy {self.description}: the network could not score observations of shape "
            f"{for_each(observations, lambda array: list(array.shape))}:"
        )
        with errors_as(PolicyFault, failure), torch.no_grad(), one_thread():
            outputs = self.module(inputs)
        if self.kind == "gaussian" and isinstance(outputs, tuple | list) and len(outputs) == 2:
            mean, log_std = outputs
            outputs = torch.stack([mean, log_std.expand_as(mean)], dim=1)
        if not isinstance(outputs, torch.Tensor):
            raise PolicyFault(
                f"policy {self.description}: expected one tensor of {self.kind} scores from the "
                f"network, got {type(outputs).__name__}; wrap it so that it returns scores only"
            )
        return outputs.detach().float().cpu().numpy(), None


def is_module(value: Any) -> bool:
    """Whether an object is a PyTorch network."""
    return isinstance(value, torch.nn.Module)


def module_identity(module: torch.nn.Module) -> str:
    """Hash the types of all layers, and all weights and buffers."""
    # Two networks with equal weights, one with ReLU and one with tanh, are two agents.
    structure = [f"{name} {type(layer).__qualname__}" for name, layer in module.named_modules()]
    weights = {
        name: tensor.detach().cpu().numpy()
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    return weights_identity(structure, weights)


def gaussian_or_logits(distribution: Any) -> torch.Tensor:
    """Return the logits, [batch, actions], or mean and log deviation, [batch, 2, dimensions]."""
    while hasattr(distribution, "base_dist"):  # Independent(Normal)
        distribution = distribution.base_dist
    if hasattr(distribution, "logits"):
        logits: torch.Tensor = distribution.logits.cpu()
        return logits
    return torch.stack([distribution.mean, distribution.stddev.log()], dim=1).cpu()


@contextmanager
def layers_watched(module: torch.nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Collect what the linear layers of a network are given, in the order of their calls.

    Convolutions and recurrent layers are noted as None: they only show that something came before.
    """
    seen: list[torch.Tensor | None] = []

    def note(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0] if isinstance(layer, torch.nn.Linear) else None)

    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.RNNBase)
    hooks = [
        layer.register_forward_pre_hook(note)
        for layer in module.modules()
        if isinstance(layer, kinds)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def last_hidden(seen: list[torch.Tensor | None], rows: int) -> npt.NDArray[np.float32]:
    """Return the input of the last linear layer, [rows, width]; width 0 if it saw no hidden one."""
    if len(seen) < 2 or seen[-1] is None or len(seen[-1]) != rows:
        return np.zeros((rows, 0), np.float32)
    hidden: npt.NDArray[np.float32] = seen[-1].detach().float().cpu().numpy().reshape(rows, -1)
    return hidden.copy()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for a while: splitting a sum among threads changes its last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensor(array: npt.NDArray[Any], parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the network's float type and on its device; integers keep their type."""
    # A copy: kernels may treat memory that begins at an odd address differently.
    tensor = torch.tensor(np.ascontiguousarray(array))
    dtype = parameter.dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.to(device=parameter.device, dtype=dtype)
