"""The networks of CleanRL's PyTorch scripts, recognised by the names and shapes of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra, errors_as
from safemargin.policies.base import ScoreKind
from safemargin.policies.libraries.cleanrl import CHANGED, refuse_weights

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtra("a CleanRL agent of a PyTorch script", extra="torch") from error

_CONVOLUTIONS = {0: (8, 4), 2: (4, 2), 4: (3, 1)}
"""The kernel and stride of each convolution, by its number in the network."""


class Scores(nn.Module):
    """The layers of a script that lead to its scores; images are divided by 255."""

    def __init__(self, weights: dict[str, Any], parts: tuple[str, ...], *, tanh: bool) -> None:
        super().__init__()
        self.parts = parts
        self.images = any(value.ndim == 4 for value in weights.values())
        for part in parts:
            self.add_module(part, _layers(weights, part, parts[-1], tanh=tanh))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the scores, [batch, actions]."""
        hidden = observations.float()
        hidden = hidden / 255.0 if self.images else hidden.flatten(1)
        for part in self.parts:
            hidden = getattr(self, part)(hidden)
        return hidden


def read_torch(path: Path) -> tuple[str, ScoreKind, Scores]:
    """Return the script that made a file, its kind of scores, and its network."""
    failure = f"policy cleanrl:{path}: cannot be read as weights of PyTorch:"
    with errors_as(InvalidInput, failure):
        weights = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(weights, dict) or not weights:
        raise refuse_weights(path, [type(weights).__name__])
    layers = {name.rpartition(".")[0] for name in weights}
    known: dict[str, tuple[set[str], tuple[str, ...], ScoreKind, bool]] = {
        "ppo": (
            {f"{part}.{number}" for part in ("actor", "critic") for number in (0, 2, 4)},
            ("actor",),
            "logits",
            True,
        ),
        "ppo_atari": (
            {"network.0", "network.2", "network.4", "network.7", "actor", "critic"},
            ("network", "actor"),
            "logits",
            False,
        ),
        "dqn": ({"network.0", "network.2", "network.4"}, ("network",), "q", False),
        "dqn_atari": (
            {f"network.{number}" for number in (0, 2, 4, 7, 9)},
            ("network",),
            "q",
            False,
        ),
    }
    script = next((name for name, each in known.items() if each[0] == layers), None)
    if script is None:
        raise refuse_weights(path, weights)
    _, parts, kind, tanh = known[script]
    used = {name: each for name, each in weights.items() if name.partition(".")[0] in parts}
    with errors_as(
        InvalidInput,
        f"policy cleanrl:{path}: the weights do not fit the network of {script} ({CHANGED}):",
    ):
        network = Scores(used, parts, tanh=tanh)
        network.load_state_dict(used)
        first = next(each for name, each in used.items() if name.endswith(".weight"))
        sizes = (first.shape[1], 84, 84) if first.ndim == 4 else (first.shape[1],)
        with torch.no_grad():
            network(torch.zeros((1, *sizes)))
    return script, kind, network


def _layers(weights: dict[str, Any], part: str, last: str, *, tanh: bool) -> nn.Module:
    """Return the layers of one part, sized as its weights are; the last part ends in scores."""
    if f"{part}.weight" in weights:
        return _linear(weights[f"{part}.weight"])
    named = {name.split(".")[1] for name in weights if name.startswith(f"{part}.")}
    numbers = sorted(map(int, named))
    layers: list[nn.Module] = []
    for number in numbers:
        weight = weights[f"{part}.{number}.weight"]
        if weight.ndim == 4:
            kernel, stride = _CONVOLUTIONS[number]
            if tuple(weight.shape[2:]) != (kernel, kernel):
                raise ValueError(f"{part}.{number} has a kernel of {list(weight.shape[2:])}")
            layers.append(nn.Conv2d(weight.shape[1], weight.shape[0], kernel, stride))
        else:
            if layers and isinstance(layers[-2], nn.Conv2d):
                layers.append(nn.Flatten())
            layers.append(_linear(weight))
        if part != last or number < numbers[-1]:
            layers.append(nn.Tanh() if tanh else nn.ReLU())
    return nn.Sequential(*layers)


def _linear(weight: Any) -> nn.Module:
    return nn.Linear(weight.shape[1], weight.shape[0])
