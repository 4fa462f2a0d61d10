"""The last hidden layer of an ONNX graph, found and made an output without the onnx library.

An ONNX file is a protocol buffer. Only the fields needed here are read: the nodes of the graph with
their operators, inputs and outputs, and the names of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safemargin.policies.onnx_messages import fields, message

GRAPH = 7  # of a model
NODE, INITIALIZER, INPUT, OUTPUT = 1, 5, 11, 12  # of a graph
NODE_INPUT, NODE_OUTPUT, NODE_OPERATOR = 1, 2, 4
NAME = {INITIALIZER: 8, INPUT: 1, OUTPUT: 1}

LINEAR = {"Gemm", "MatMul", "FusedGemm", "MatMulInteger", "QGemm"}


@dataclass(frozen=True, slots=True)
class _Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def hidden_tensors(model: bytes, outputs: Sequence[str]) -> list[str]:
    """Return the inputs of the last linear layers behind these outputs, in the graph's order.

    Empty where there is no such layer, or where it sees the observation itself.
    """
    nodes: list[_Node] = []
    constants: set[str] = set()
    observed: set[str] = set()
    for field, value in fields(_graph(model)):
        if field == NODE:
            nodes.append(_node(value))
        elif field == INITIALIZER:
            constants.add(_name(value, INITIALIZER))
        elif field == INPUT:
            observed.add(_name(value, INPUT))
    observed -= constants  # older files list their weights among the inputs
    for node in nodes:  # in an order in which each node's inputs are known
        if all(name in constants or not name for name in node.inputs):
            constants.update(node.outputs)
    producers = {name: node for node in nodes for name in node.outputs}
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in seen or name in constants or name not in producers:
            continue
        seen.add(name)
        node = producers[name]
        live = [each for each in node.inputs if each and each not in constants]
        if node.operator in LINEAR and len(live) == 1:
            found[live[0]] = None
        else:
            waiting += live
    hidden = [name for name in producers if name in found]
    return [] if _only_reshaped(hidden, producers, constants, observed) else hidden


def with_outputs(model: bytes, names: Sequence[str]) -> bytes:
    """Return the model with these tensors among its outputs.

    A second message for the field `graph` is merged into the first, and lists are joined: that is
    how protocol buffers are defined.
    """
    added = b"".join(message(OUTPUT, message(NAME[OUTPUT], name.encode())) for name in names)
    return model + message(GRAPH, added)


def _only_reshaped(
    names: Sequence[str], producers: dict[str, _Node], constants: set[str], observed: set[str]
) -> bool:
    """Whether these tensors are the observation, cast, flattened or scaled: no layer before."""
    layers = LINEAR | {"Conv", "ConvInteger", "QLinearConv", "LSTM", "GRU", "RNN", "Attention"}
    waiting, seen = list(names), set(observed) | constants
    while waiting:
        name = waiting.pop()
        if name in seen or name not in producers:
            continue
        seen.add(name)
        if producers[name].operator in layers:
            return False
        waiting += producers[name].inputs
    return True


def _graph(model: bytes) -> bytes:
    return b"".join(value for field, value in fields(model) if field == GRAPH)


def _node(content: bytes) -> _Node:
    inputs, outputs, operator = [], [], ""
    for field, value in fields(content):
        if field == NODE_INPUT:
            inputs.append(value.decode())
        elif field == NODE_OUTPUT:
            outputs.append(value.decode())
        elif field == NODE_OPERATOR:
            operator = value.decode()
    return _Node(operator, tuple(inputs), tuple(outputs))


def _name(content: bytes, kind: int) -> str:
    return next((value.decode() for field, value in fields(content) if field == NAME[kind]), "")
