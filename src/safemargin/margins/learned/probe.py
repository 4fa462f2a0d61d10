"""A learned proxy as it travels with margins: plain arrays, evaluated with numpy only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.policies.proxies import ALL_KINDS

if TYPE_CHECKING:
    from safemargin.policies.base import ScoreKind

Arrays = npt.NDArray[np.float32]

LEARNED = "learned"
"""The name of a study's learned proxy."""

RANKINGS = {"regret": "learned-regret", "stakes": "learned-stakes"}
"""Target → the name of what a study has learned of it; these put decisions in order, no more."""

EXPLANATIONS = {"return": "learned-return", "mask": "learned-mask"}
"""What a model of episodes is learned from → what its importance of steps is called along them."""


def is_learned(proxy: str) -> bool:
    """Whether the values of a proxy at moments come from models that have not seen them."""
    return proxy == LEARNED or proxy in (*RANKINGS.values(), *EXPLANATIONS.values())


def refuse_ranking(proxy: str) -> None:
    """Raise InvalidInput for a ranking where margins are asked for."""
    if proxy in RANKINGS.values():
        raise InvalidInput(
            f"{proxy} puts decisions in order of the agent's own mistakes, and no margins are "
            "fitted to that; `simulate-oversight --by` uses it"
        )


LEAST_REST = 1e-6
"""A view with less than this across its axes, in units of its inputs' spread, holds rounding."""

MOST_BYTES = 64 * 2**20
"""An array in a file that is larger than this is refused."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One affine layer; all but the last of a network are followed by max(0, ·)."""

    weights: Arrays  # [inputs, outputs]
    bias: Arrays  # [outputs]


Stacks = list[list[Layer]]
"""Networks of the same shape, each layer with their weights [networks, inputs, outputs]."""


@dataclass(frozen=True, eq=False)
class View:
    """How the inputs of the training moments are spread: their main directions.

    Each input is first brought to mean 0 and spread 1. `directions` are the main axes of what is
    then left, and `spreads` the training moments' standard deviations along them.
    """

    mean: Arrays  # [inputs]
    scale: Arrays  # [inputs]
    directions: Arrays  # [inputs, axes] orthonormal columns
    spreads: Arrays  # [axes]
    rest: float
    """The mean squared length of what lies along none of the axes."""

    def __call__(self, inputs: npt.NDArray[Any]) -> tuple[Arrays, Floats]:
        """Return the coordinates along the axes [moments, axes], and the distance [moments].

        The distance is from the middle of the training moments, in units of their own spread: 1 on
        average for moments like them, along the axes and across them.
        """
        ready = np.asarray((inputs - self.mean) / self.scale, np.float32)
        along = ready @ self.directions
        coordinates = along / self.spreads
        distance = np.asarray(_lengths(coordinates) / coordinates.shape[1], np.float64)
        if self.rest > 0:
            across = np.maximum(_lengths(ready) - _lengths(along), 0)
            distance = np.maximum(distance, across / self.rest)
        return coordinates, distance


@dataclass(frozen=True, eq=False)
class Probe:
    """Predicts what mistakes would cost from what the policy's network makes of the moment.

    The value is the mean over `networks` of their only output; higher is more critical. It puts
    moments in order; how large a loss goes with a value is for a bound to say.
    """

    kind: ScoreKind
    policy: str
    """The identity of the policy whose features it reads; those of another mean something else."""
    hidden_width: int
    """Columns of the hidden layer and value that it expects, at each lag."""
    view: View
    networks: Sequence[Sequence[Layer]]
    farthest: float
    """Moments at a larger distance are outside: unlike anything measured."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: model, target, moments, labels, the false-alarm rate of `farthest`."""

    def __call__(self, inputs: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the value at each of [moments, inputs], and whether it is outside, [moments]."""
        coordinates, distance = self.view(inputs)
        return _run(self._stacks, coordinates), distance > self.farthest

    @cached_property
    def _stacks(self) -> Stacks:
        return _stacked(self.networks)

    @property
    def inputs(self) -> int:
        """The number of inputs at each moment."""
        return len(self.view.mean)

    @property
    def identity(self) -> str:
        """A hash of everything that decides the value."""
        view = self.view
        digest = hashlib.sha256(f"{self.kind} {self.policy} {self.hidden_width}".encode())
        digest.update(np.array([view.rest, self.farthest]).tobytes())
        layers = [
            array for net in self.networks for one in net for array in (one.weights, one.bias)
        ]
        for array in (view.mean, view.scale, view.directions, view.spreads, *layers):
            digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON: arrays as base64 of little-endian numbers, with shape and type."""
        view = self.view
        return {
            "kind": self.kind,
            "policy": self.policy,
            "hidden_width": self.hidden_width,
            "mean": _packed(view.mean),
            "scale": _packed(view.scale),
            "directions": _packed(view.directions),
            "spreads": _packed(view.spreads),
            "rest": view.rest,
            "networks": [
                [[_packed(layer.weights), _packed(layer.bias)] for layer in network]
                for network in self.networks
            ],
            "farthest": self.farthest,
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Probe:
        """Restore what `to_dict` returned, after checking all of it."""
        try:
            if data["kind"] not in ALL_KINDS or type(data["policy"]) is not str:
                raise InvalidInput("the probe does not say whose scores it reads")
            width = data["hidden_width"]
            numbers = [data["rest"], data["farthest"]]
            if type(width) is not int or width < 0 or type(data["about"]) is not dict:
                raise InvalidInput("the probe's hidden_width or about is no number or no object")
            if any(type(one) not in (int, float) or not math.isfinite(one) for one in numbers):
                raise InvalidInput("the probe's distances must be finite numbers")
            view = View(
                mean=_unpacked(data["mean"]),
                scale=_unpacked(data["scale"]),
                directions=_unpacked(data["directions"]),
                spreads=_unpacked(data["spreads"]),
                rest=float(data["rest"]),
            )
            networks = [
                [Layer(_unpacked(weights), _unpacked(bias)) for weights, bias in network]
                for network in data["networks"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"the probe is damaged ({error!r:.80})") from error
        _check_shapes(view, networks)
        return cls(
            kind=data["kind"],
            policy=data["policy"],
            hidden_width=width,
            view=view,
            networks=networks,
            farthest=float(data["farthest"]),
            about=data["about"],
        )


def _check_shapes(view: View, networks: Sequence[Sequence[Layer]]) -> None:
    inputs, axes = len(view.mean), len(view.spreads)
    shapes = [view.mean.shape, view.scale.shape, view.directions.shape, view.spreads.shape]
    if shapes != [(inputs,), (inputs,), (inputs, axes), (axes,)] or not inputs or not axes:
        raise InvalidInput(f"the arrays of the probe's view do not fit together: {shapes}")
    if (view.scale <= 0).any() or (view.spreads <= 0).any():
        raise InvalidInput("the probe's scales must be above 0")
    if view.rest < 0 or 0 < view.rest < LEAST_REST:
        raise InvalidInput(f"the rest of the probe's view must be 0, or {LEAST_REST} or more")
    if not networks:
        raise InvalidInput("the probe holds no network")
    for network in networks:
        width = axes
        for layer in network:
            if layer.weights.ndim != 2 or layer.weights.shape[0] != width:
                raise InvalidInput("the layers of the probe do not fit together")
            width = layer.weights.shape[1]
            if layer.bias.shape != (width,):
                raise InvalidInput("the layers of the probe do not fit together")
        if width != 1 or not network:
            raise InvalidInput("a network of the probe must give one number")


def _packed(array: Arrays) -> dict[str, Any]:
    """Return an array as JSON; in half precision where that loses nothing."""
    with np.errstate(over="ignore"):  # too large for half precision: infinite, so not equal
        half = array.astype(np.float16)
    whole = half if np.array_equal(half.astype(np.float32), array) else array
    little = np.ascontiguousarray(whole, whole.dtype.newbyteorder("<"))
    return {
        "type": little.dtype.name,
        "shape": list(array.shape),
        "base64": base64.b64encode(little.tobytes()).decode(),
    }


def _unpacked(entry: Any) -> Arrays:
    kinds = {"float16": "<f2", "float32": "<f4"}
    text, shape = entry["base64"], entry["shape"]
    if type(text) is not str or len(text) > MOST_BYTES or entry["type"] not in kinds:
        raise InvalidInput("an array of the probe is no base64 of float16 or float32 numbers")
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"an array of the probe is damaged ({error})") from error
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise InvalidInput("the shape of an array of the probe must be a list of whole numbers")
    array = np.frombuffer(content, kinds[entry["type"]]).reshape(shape).astype(np.float32)
    if not np.isfinite(array).all():
        raise InvalidInput("an array of the probe holds a number that is not finite")
    return array


def _lengths(rows: Arrays) -> Arrays:
    """Return the squared length of each row."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def predict(networks: Sequence[Sequence[Layer]], coordinates: Arrays) -> Floats:
    """Return the mean over networks of their only output, [moments]."""
    return _run(_stacked(networks), coordinates)


def _stacked(networks: Sequence[Sequence[Layer]]) -> Stacks:
    """Put networks of the same shape together, so that they are computed at once."""
    alike: dict[Any, list[Sequence[Layer]]] = {}
    for network in networks:
        alike.setdefault(tuple(layer.weights.shape for layer in network), []).append(network)
    return [
        [
            Layer(
                np.stack([layer.weights for layer in layers]),
                np.stack([layer.bias[None] for layer in layers]),
            )
            for layers in zip(*group, strict=True)
        ]
        for group in alike.values()
    ]


def _run(stacks: Stacks, coordinates: Arrays) -> Floats:
    total, count = np.zeros(len(coordinates)), 0
    for layers in stacks:
        rows = coordinates
        for number, layer in enumerate(layers):
            rows = np.matmul(rows, layer.weights) + layer.bias  # [networks, moments, outputs]
            if number < len(layers) - 1:
                rows = np.maximum(rows, 0)
        total += rows[..., 0].sum(axis=0, dtype=np.float64)
        count += len(rows)
    return total / count
