"""The graph of an ONNX file with its weights, read without the onnx library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput
from safemargin.policies.onnx_messages import fields, whole_numbers

OPSETS, GRAPH = 8, 7  # of a model
NODE, INITIALIZER = 1, 5  # of a graph
INPUT, OUTPUT, OPERATOR, ATTRIBUTE, DOMAIN = 1, 2, 4, 5, 7  # of a node
DIMS, TYPE, FLOATS, INTS32, INTS64, TENSOR_NAME, RAW, DOUBLES, LOCATION = (
    1,
    2,
    4,
    5,
    7,
    8,
    9,
    10,
    14,
)

TYPES: dict[int, npt.DTypeLike] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
}
"""Type numbers of ONNX."""


NARROW: dict[Any, Any] = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}
"""What JAX computes with in place of 64 bits."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation."""

    operator: str
    """Its name, after its domain and a dot where that is not ONNX's own."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in an order in which each one's inputs are known, and arrays."""

    nodes: list[Node]
    constants: dict[str, npt.NDArray[Any]]
    opset: int


def read_graph(model: bytes) -> Graph:
    """Read the graph of a model; raises InvalidInput for tensors that lie elsewhere."""
    graph = b"".join(value for number, value in fields(model) if number == GRAPH)
    nodes: list[Node] = []
    constants = {}
    for number, value in fields(graph):
        if number == NODE:
            nodes.append(_node(value))
        elif number == INITIALIZER:
            name, array = _tensor(value)
            constants[name] = array
    versions = [dict(fields(value)) for number, value in fields(model) if number == OPSETS]
    own = [each.get(2, 1) for each in versions if each.get(1, b"") in (b"", b"ai.onnx")]
    return Graph(nodes, constants, max(own, default=1))


def _node(content: bytes) -> Node:
    inputs, outputs, attributes = [], [], {}
    operator = domain = ""
    for number, value in fields(content):
        if number == INPUT:
            inputs.append(value.decode())
        elif number == OUTPUT:
            outputs.append(value.decode())
        elif number == OPERATOR:
            operator = value.decode()
        elif number == DOMAIN:
            domain = value.decode()
        elif number == ATTRIBUTE:
            name, content = _attribute(value)
            attributes[name] = content
    if domain not in ("", "ai.onnx"):
        operator = f"{domain}.{operator}"
    return Node(operator, tuple(inputs), tuple(outputs), attributes)


def _attribute(content: bytes) -> tuple[str, Any]:
    """Return an attribute's name and value: a number, a text, an array, or a list of numbers."""
    name, kind = "", 0
    found: dict[int, Any] = {2: bytes(4), 3: 0, 4: b"", 5: b""}
    floats: list[float] = []
    ints: list[int] = []
    for number, value in fields(content):
        if number == 1:
            name = value.decode()
        elif number == 20:
            kind = value
        elif number == 7:
            floats += np.frombuffer(value, "<f4").tolist()
        elif number == 8:
            ints += [value] if isinstance(value, int) else whole_numbers(value)
        elif number in found:
            found[number] = value
    if kind == 1:
        return name, float(np.frombuffer(found[2], "<f4")[0])
    if kind == 2:
        return name, found[3]
    if kind == 3:
        return name, found[4].decode()
    if kind == 4:
        return name, _tensor(found[5])[1]
    return name, {6: floats, 7: ints}.get(kind)


def _tensor(content: bytes) -> tuple[str, npt.NDArray[Any]]:
    """Return a tensor's name and its numbers."""
    name, kind, raw = "", 1, None
    dims: list[int] = []
    numbers: list[Any] = []
    for number, value in fields(content):
        if number == DIMS:
            dims += _ints(value)
        elif number == TYPE:
            kind = value
        elif number == TENSOR_NAME:
            name = value.decode()
        elif number == RAW:
            raw = value
        elif number == FLOATS:
            numbers += np.frombuffer(value, "<f4").tolist()
        elif number == DOUBLES:
            numbers += np.frombuffer(value, "<f8").tolist()
        elif number in (INTS32, INTS64):
            numbers += _ints(value)
        elif number == LOCATION and value:
            raise InvalidInput(f"the tensor {name!r} lies in another file")
    if kind not in TYPES:
        raise InvalidInput(f"the tensor {name!r} is of ONNX's type {kind}")
    dtype = np.dtype(TYPES[kind])
    if raw is not None:
        array = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)
    elif dtype == np.float16:  # its bits, as whole numbers
        array = np.array(numbers, np.uint16).view(np.float16)
    else:
        array = np.array(numbers, dtype)
    return name, array.reshape(dims)


def _ints(value: Any) -> Iterable[int]:
    return [value] if isinstance(value, int) else whole_numbers(value)
