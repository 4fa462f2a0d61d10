"""ONNX files translated to JAX score as onnxruntime does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.jax_loading import as_jax
from safemargin.policies.onnx import OnnxPolicy
from safemargin.policies.onnx_operators import OPERATORS

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")
onnx = pytest.importorskip("onnx")
helper, numpy_helper, FLOAT = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


def saved(
    path: Path,
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    *,
    width: int | tuple[int, ...] = 6,
    outputs: dict[str, list[Any]] | None = None,
    inputs: dict[str, list[Any]] | None = None,
    opset: int = 18,
    batch: Any = "batch",
) -> OnnxPolicy:
    """Save a graph from `x` to `q_values` and load it."""
    shape = [batch, *([width] if isinstance(width, int) else width)]
    given = {"x": shape, **(inputs or {})}
    found = {"q_values": [batch, None], **(outputs or {})}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, size) for name, size in given.items()],
        [helper.make_tensor_value_info(name, FLOAT, size) for name, size in found.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return OnnxPolicy(path)


def node(operator: str, *inputs: str, out: str = "q_values", **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), [out], **attributes)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


POSITIVE = node("Exp", "x", out="p")
ONE: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    **{name: ([node(name, "x")], {}) for name in (
        "Abs", "Elu", "Exp", "Identity", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Softmax",
        "LogSoftmax", "Softplus", "Tanh", "Dropout",
    )},
    **{name: ([POSITIVE, node(name, "p")], {}) for name in ("Log", "Sqrt")},
    **{name: ([node(name, "x", "w")], {"w": weights(6)}) for name in ("Add", "Sub", "Mul", "Div")},
    **{name: ([node(name, "x", "w", "v")], {"w": weights(6), "v": weights(6, seed=1)})
       for name in ("Max", "Min")},
    "Pow": ([POSITIVE, node("Pow", "p", "w")], {"w": weights(6)}),
    "Clip": ([node("Clip", "x", "a", "b")], {"a": np.float32(-0.5), "b": np.float32(0.3)}),
    "MatMul": ([node("MatMul", "x", "w")], {"w": weights(6, 3)}),
    "Gemm": (
        [node("Gemm", "x", "w", "b", transB=1, alpha=0.5, beta=2.0)],
        {"w": weights(3, 6), "b": weights(3)},
    ),
    "Conv": (
        [
            node("Reshape", "x", "s", out="image"),
            node("Conv", "image", "k", "b", out="c", pads=[1, 0, 1, 2], strides=[1, 2],
                 dilations=[1, 1], group=1),
            node("Flatten", "c"),
        ],
        {"s": ints(-1, 1, 2, 3), "k": weights(4, 1, 2, 2), "b": weights(4)},
    ),
    "Reshape": ([node("Reshape", "x", "s", out="r"), node("Flatten", "r")], {"s": ints(0, 2, -1)}),
    "Flatten": ([node("Flatten", "x")], {}),
    "Concat": ([node("Concat", "x", "x", axis=1)], {}),
    "Transpose": (
        [
            node("Reshape", "x", "s", out="r"),
            node("Transpose", "r", out="t", perm=[0, 2, 1]),
            node("Flatten", "t"),
        ],
        {"s": ints(-1, 2, 3)},
    ),
    "Cast": ([node("Cast", "h", out="w", to=FLOAT), node("Mul", "x", "w")],
             {"h": weights(6).astype(np.float16)}),
    "Constant": (
        [
            node("Constant", out="w", value=numpy_helper.from_array(weights(6))),
            node("Add", "x", "w"),
        ],
        {},
    ),
    "Gather": ([node("Gather", "x", "i", axis=1)], {"i": ints(2, 0)}),
    "Squeeze": ([node("Unsqueeze", "x", "a", out="u"), node("Squeeze", "u", "a")], {"a": ints(1)}),
    "Unsqueeze": ([node("Unsqueeze", "x", "a", out="u"), node("Flatten", "u")], {"a": ints(2)}),
    "ReduceMean": ([node("ReduceMean", "x", "a", keepdims=1)], {"a": ints(1)}),
    "ReduceSum": ([node("ReduceSum", "x", "a", keepdims=1)], {"a": ints(1)}),
    "LayerNormalization": (
        [node("LayerNormalization", "x", "g", "b")], {"g": weights(6), "b": weights(6, seed=1)}
    ),
    "Shape": (  # as exports write "the batch as it comes"
        [
            node("Shape", "x", out="n", start=0, end=1),
            node("Concat", "n", "rest", out="s", axis=0),
            node("Reshape", "x", "s", out="r"),
            node("Flatten", "r"),
        ],
        {"rest": ints(3, 2)},
    ),
    "Expand": (
        [
            node("Shape", "x", out="s"),
            node("Expand", "w", "s", out="e"),
            node("Mul", "x", "e"),
        ],
        {"w": weights(1, 6)},
    ),
}  # fmt: skip


def compared(policy: OnnxPolicy, shape: tuple[int, ...]) -> None:
    """Check the translation on more observations than one tile holds."""
    seen = np.random.default_rng(3).normal(size=(70, *shape)).astype(np.float32)
    translated = as_jax(policy)
    assert translated is not None
    assert (translated.kind, translated.identity) == (policy.kind, policy.identity)
    expected, _ = policy.scores(seen)
    found, _ = translated.scores(seen)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(translated.scores(seen[:3])[0], found[:3])  # in any batch


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_computes_what_onnxruntime_does(operator: str, tmp_path: Path) -> None:
    nodes, constants = ONE[operator]
    compared(saved(tmp_path / "graph.onnx", copy.deepcopy(nodes), constants), (6,))


def test_a_graph_for_one_row_is_run_row_by_row(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x", "w")]
    compared(saved(tmp_path / "one.onnx", nodes, {"w": weights(6, 3)}, batch=1), (6,))


def test_a_gaussian_policy_with_a_spread_for_all_rows(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x", "w", out="mean"), node("Identity", "s", out="log_std")]
    path = tmp_path / "gaussian.onnx"
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info(name, FLOAT, [None, 2]) for name in ("mean", "log_std")],
        [numpy_helper.from_array(weights(6, 2), "w"), numpy_helper.from_array(weights(1, 2), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path)
    compared(OnnxPolicy(path), (6,))


def test_memory_is_carried(tmp_path: Path) -> None:
    nodes = [
        node("Add", "x", "h", out="sum"),
        node("Tanh", "sum", out="h_out"),
        node("MatMul", "h_out", "w"),
    ]
    policy = saved(
        tmp_path / "memory.onnx", nodes, {"w": weights(6, 3)},
        inputs={"h": ["batch", 6]}, outputs={"h_out": ["batch", 6]},
    )  # fmt: skip
    translated = as_jax(policy)
    assert translated is not None
    seen = weights(5, 6, seed=2)
    expected = policy.scores(seen, policy.scores(seen)[1])
    found = translated.scores(seen, translated.scores(seen)[1])
    assert expected[1] is not None
    assert found[1] is not None
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1][0], expected[1][0], rtol=1e-5)
    assert (found[0] != translated.scores(seen)[0]).any()


@pytest.mark.parametrize("name", ["cartpole", "minatar-breakout", "rocket"])
def test_bundled_agents_choose_the_same_actions(name: str) -> None:
    policy = load_policy(f"zoo:{name}")
    assert isinstance(policy, OnnxPolicy)
    ((shape, dtype),) = policy.inputs.values()
    drawn = np.random.default_rng(5)
    sizes = (4, *(size or 1 for size in shape))
    high = 256 if len(shape) == 3 and shape[0] == 4 else 2
    seen: Any = drawn.integers(0, high, sizes) if dtype == np.uint8 else drawn.normal(size=sizes)
    translated = as_jax(policy)
    assert translated is not None
    expected, found = policy.features(seen.astype(dtype)), translated.features(seen.astype(dtype))
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.hidden, expected.hidden, rtol=1e-4, atol=1e-4)


def test_operators_without_a_counterpart_are_named(tmp_path: Path) -> None:
    nodes = [node("Sin", "x", out="s"), node("Cos", "s", out="c"), node("Relu", "c")]
    policy = saved(tmp_path / "waves.onnx", nodes, {})
    with pytest.raises(InvalidInput, match=r"cannot be translated to JAX: it uses Cos, Sin; known"):
        as_jax(policy)


def test_a_batch_of_a_fixed_size_is_refused(tmp_path: Path) -> None:
    policy = saved(tmp_path / "four.onnx", [node("Relu", "x")], {}, batch=4)
    with pytest.raises(InvalidInput, match="takes exactly 4 observations at once"):
        as_jax(policy)


def test_weights_in_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "beside.onnx"
    saved(path, [node("MatMul", "x", "w")], {"w": weights(6, 300)})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin")
    with pytest.raises(InvalidInput, match="weights lie in files beside it; export it with"):
        as_jax(OnnxPolicy(path))


def test_a_shape_that_depends_on_the_observation_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", out="i", to=onnx.TensorProto.INT64),
        node("Reshape", "i", "flat", out="s"),
        node("Expand", "w", "s"),
    ]
    policy = saved(tmp_path / "shapes.onnx", nodes, {"w": weights(1, 6), "flat": ints(-1)}, width=1)
    translated = as_jax(policy)
    assert translated is not None
    with pytest.raises(InvalidInput, match="a shape depends on the observation"):
        translated.scores(np.ones((2, 1), np.float32))
