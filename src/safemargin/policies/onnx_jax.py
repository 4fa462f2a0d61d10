"""ONNX graphs as functions in JAX, so that one file is the same agent in both worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput, errors_as
from safemargin.policies.jax import JaxPolicy
from safemargin.policies.onnx import MEMORY_SUFFIX, OnnxPolicy
from safemargin.policies.onnx_model import NARROW, Graph, Node, read_graph
from safemargin.policies.onnx_operators import OPERATORS


def translated(policy: OnnxPolicy) -> JaxPolicy:
    """Return the same agent as a function in JAX; raises InvalidInput where that cannot be."""
    load_jax(f"policy {policy.description} in JAX")
    trouble = f"policy {policy.description} cannot be translated to JAX:"
    if policy.external:
        raise InvalidInput(
            f"{trouble} its weights lie in files beside it; export it with external_data=False"
        )
    if policy.static_batch not in (None, 1):
        raise InvalidInput(
            f"{trouble} it takes exactly {policy.static_batch} observations at once; export it "
            "with a dynamic batch"
        )
    with errors_as(InvalidInput, trouble):
        graph = read_graph(policy.model)
    memory = tuple(name + MEMORY_SUFFIX for name in policy.memory)
    program = _Program(graph, (*policy.outputs, *memory), trouble)
    hidden = _Program(graph, policy.hidden_names, trouble) if policy.hidden_names else None
    inputs = {name: NARROW.get(dtype, dtype) for name, (_, dtype) in policy.inputs.items()}

    def feed(observations: Any, carried: Any) -> dict[str, Any]:
        parts = observations
        if not isinstance(observations, Mapping):
            parts = dict.fromkeys(inputs, observations)
        given = {name: parts[name].astype(dtype) for name, dtype in inputs.items()}
        return {**given, **dict(zip(policy.memory, carried, strict=True))}

    def scores(params: Any, observations: Any, carried: Any = ()) -> Any:
        found = program(params, feed(observations, carried))
        after = tuple(found[len(policy.outputs) :])
        given = found[0]
        if len(policy.outputs) == 2:  # mean, log standard deviation
            given = (found[0], load_jax("ONNX").numpy.broadcast_to(found[1], found[0].shape))
        return (given, after) if memory else given

    def last_hidden(params: Any, observations: Any, carried: Any = ()) -> Any:
        assert hidden is not None
        found = hidden(params, feed(observations, carried))
        return load_jax("ONNX").numpy.concatenate(
            [each.reshape(each.shape[0], -1) for each in found], axis=1
        )

    by_row = policy.static_batch == 1
    return JaxPolicy(
        _row_by_row(scores) if by_row else scores,
        program.weights | (hidden.weights if hidden is not None else {}),
        kind=policy.kind,
        initial=tuple(start[0] for start in policy.memory.values()) or None,
        hidden=None if hidden is None else _row_by_row(last_hidden) if by_row else last_hidden,
        uses_mask=policy.uses_mask,
        identity=policy.identity,
        description=policy.description,
    )


class _Program:
    """The part of a graph that some outputs need, with all that is constant computed before."""

    def __init__(self, graph: Graph, outputs: Sequence[str], trouble: str) -> None:
        producers = {name: node for node in graph.nodes for name in node.outputs}
        needed: set[int] = set()
        waiting = list(outputs)
        while waiting:
            node = producers.get(waiting.pop())
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                waiting += node.inputs
        nodes = [node for node in graph.nodes if id(node) in needed]
        unknown = sorted({node.operator for node in nodes} - set(OPERATORS))
        if unknown:
            raise InvalidInput(
                f"{trouble} it uses {', '.join(unknown)}; known are {', '.join(sorted(OPERATORS))}"
            )
        self.outputs, self.opset = outputs, graph.opset
        known: dict[str, Any] = dict(graph.constants)
        self.nodes = []
        for node in nodes:
            if all(name in known for name in node.inputs if name):
                with errors_as(InvalidInput, f"{trouble} {node.operator}:"):
                    self._run(np, node, known)
            else:
                self.nodes.append(node)
        used = {name for node in self.nodes for name in node.inputs}
        live = {name: known[name] for name in used | set(outputs) if name in known}
        self.weights: dict[str, npt.NDArray[Any]] = {
            name: array for name, array in live.items() if _is_weight(array)
        }
        self.constants = {name: each for name, each in live.items() if name not in self.weights}

    def __call__(self, weights: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        values = {**self.constants, **{name: weights[name] for name in self.weights}, **given}
        for node in self.nodes:
            self._run(load_jax("ONNX").numpy, node, values)
        return [values[name] for name in self.outputs]

    def _run(self, numbers: Any, node: Node, values: dict[str, Any]) -> None:
        """Compute one operation; shapes, which are no arrays of JAX, stay with numpy."""
        inputs = [values[name] if name else None for name in node.inputs]
        if all(isinstance(each, np.ndarray | np.generic | None) for each in inputs):
            numbers = np
        found = OPERATORS[node.operator](numbers, node.attributes | {"opset": self.opset}, *inputs)
        values[node.outputs[0]] = found


def _is_weight(array: npt.NDArray[Any]) -> bool:
    """Whether an array is a number of the network, rather than a shape or an index."""
    return array.dtype.kind == "f"


def _row_by_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of batches, of one that takes batches of one row."""
    jax = load_jax("ONNX")

    def one(params: Any, observations: Any, *carried: Any) -> Any:
        def row(*given: Any) -> Any:
            alone = jax.tree.map(lambda array: array[None], given)
            return jax.tree.map(lambda array: array[0], function(params, *alone))

        return jax.vmap(row)(observations, *carried)

    return one
