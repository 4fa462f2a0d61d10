"""The networks of CleanRL's Flax scripts, recognised by the names and shapes of parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput, MissingExtra, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, checked_fixed_batch
from safemargin.policies.checks import same_kind
from safemargin.policies.identity import weights_identity
from safemargin.policies.libraries.cleanrl import refuse_weights

try:
    from flax import linen as nn
    from flax.serialization import msgpack_restore
except ImportError as error:
    raise MissingExtra("a CleanRL agent of a Flax script", extra="cleanrl") from error

_KERNELS = ((8, 4), (4, 2), (3, 1))


class Convolutions(nn.Module):  # type: ignore[misc]
    """The three convolutions of the Atari scripts, over [batch, frames, height, width]."""

    channels: tuple[int, ...]

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, images: Any) -> Any:
        hidden = images.transpose(0, 2, 3, 1) / 255.0
        for channels, (kernel, stride) in zip(self.channels, _KERNELS, strict=True):
            size, strides = (kernel, kernel), (stride, stride)
            hidden = nn.relu(nn.Conv(channels, size, strides, padding="VALID")(hidden))
        return hidden.reshape((hidden.shape[0], -1))


class FlaxPolicy(BatchedPolicy):
    """Takes scores from a compiled function of parameters and observations."""

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        params: Any,
        *,
        kind: ScoreKind,
        fixed_batch: int | None = 1,
        identity: str,
        description: str,
    ) -> None:
        self.function, self.params = function, params
        self.kind, self.identity, self.description = kind, identity, description
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self._compiled: Any = None

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        if self._compiled is None:
            self._compiled = load_jax(f"policy {self.description}").jit(self.function)
        return np.asarray(self._compiled(self.params, observations)), None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}


def read_flax(path: Path, *, kind: ScoreKind | None, **options: Any) -> FlaxPolicy:
    """Return the policy of a file that `flax.serialization.to_bytes` wrote."""
    failure = f"policy cleanrl:{path}: cannot be read as parameters of Flax or PyTorch:"
    with errors_as(InvalidInput, failure):
        stored = msgpack_restore(path.read_bytes())
    script, found, function, params = _network(path, stored)
    description = f"cleanrl:{path} ({script})"
    identity = options.pop("identity", None)
    with errors_as(InvalidInput, f"policy {description}: the parameters do not fit:"):
        leaves = load_jax(description).tree_util.tree_flatten_with_path(params)[0]
    arrays = {str(where): np.asarray(leaf) for where, leaf in leaves}
    return FlaxPolicy(
        function,
        params,
        kind=same_kind(found, kind, description),
        identity=identity or weights_identity([script], arrays),
        description=description,
        **options,
    )


def _network(path: Path, stored: Any) -> tuple[str, ScoreKind, Callable[[Any, Any], Any], Any]:
    """Return the script, its kind of scores, its function and its parameters."""
    with errors_as(InvalidInput, f"policy cleanrl:{path}: {refuse_weights(path, stored)}"):
        if "1" in stored and "0" in stored["1"]:  # [arguments, [network, actor, critic]]
            network, actor = stored["1"]["0"]["params"], stored["1"]["1"]["params"]
            if set(network) == {"Conv_0", "Conv_1", "Conv_2", "Dense_0"} and set(actor) == {
                "Dense_0"
            }:
                return "ppo_atari_envpool_xla_jax", "logits", actor_scores, stored["1"]
        elif set(stored.get("params", {})) == {"Dense_0", "Dense_1", "Dense_2"}:
            return "dqn_jax", "q", dense_values, stored
        elif set(stored.get("params", {})) == {"Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1"}:
            return "dqn_atari_jax", "q", image_values, stored
    raise refuse_weights(path, _names_in(stored))


def dense_values(params: Any, observations: Any) -> Any:
    """Return the Q values of `dqn_jax`."""
    layers, hidden = params["params"], observations
    for number in range(len(layers)):
        hidden = _dense(layers[f"Dense_{number}"], hidden)
        hidden = nn.relu(hidden) if number < len(layers) - 1 else hidden
    return hidden


def image_values(params: Any, observations: Any) -> Any:
    """Return the Q values of `dqn_atari_jax`."""
    layers = params["params"]
    hidden = nn.relu(_dense(layers["Dense_0"], _convolved(layers, observations)))
    return _dense(layers["Dense_1"], hidden)


def actor_scores(params: Any, observations: Any) -> Any:
    """Return the logits of `ppo_atari_envpool_xla_jax`."""
    layers = params["0"]["params"]
    hidden = nn.relu(_dense(layers["Dense_0"], _convolved(layers, observations)))
    return _dense(params["1"]["params"]["Dense_0"], hidden)


def _convolved(layers: Any, images: Any) -> Any:
    names = ("Conv_0", "Conv_1", "Conv_2")
    channels = tuple(int(layers[name]["kernel"].shape[-1]) for name in names)
    return Convolutions(channels).apply({"params": {name: layers[name] for name in names}}, images)


def _dense(layer: Any, hidden: Any) -> Any:
    return nn.Dense(layer["kernel"].shape[-1]).apply({"params": layer}, hidden)


def _names_in(stored: Any) -> list[str]:
    return list(stored.get("params", stored)) if isinstance(stored, dict) else [str(type(stored))]
