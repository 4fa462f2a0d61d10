"""ONNX operators on arrays: `numbers` is numpy for what is constant, and JAX's numpy otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput
from safemargin.policies.onnx_model import NARROW, TYPES

Attributes = Mapping[str, Any]


def _binary(name: str) -> Callable[..., Any]:
    return lambda numbers, attributes, left, right: getattr(numbers, name)(left, right)


def _of_many(name: str) -> Callable[..., Any]:
    return lambda numbers, attributes, *arrays: functools.reduce(getattr(numbers, name), arrays)


def _unary(name: str) -> Callable[..., Any]:
    return lambda numbers, attributes, array: getattr(numbers, name)(array)


def _div(numbers: Any, attributes: Attributes, left: Any, right: Any) -> Any:
    if left.dtype.kind in "iu":  # towards zero, as in C
        return (numbers.sign(left) * numbers.sign(right)) * (abs(left) // abs(right))
    return left / right


def _gemm(numbers: Any, attributes: Attributes, a: Any, b: Any, c: Any = None) -> Any:
    a = a.T if attributes.get("transA") else a
    b = b.T if attributes.get("transB") else b
    product = numbers.matmul(a, b)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    product = product if alpha == 1 else product * np.float32(alpha)
    return product if c is None else product + (c if beta == 1 else c * np.float32(beta))


def _conv(numbers: Any, attributes: Attributes, image: Any, kernel: Any, bias: Any = None) -> Any:
    lax = load_jax("ONNX").lax
    spatial = image.ndim - 2
    pads = attributes.get("pads", [0] * 2 * spatial)
    padding: Any = list(zip(pads[:spatial], pads[spatial:], strict=True))
    automatic = attributes.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        padding = "SAME" if automatic == "SAME_UPPER" else "SAME_LOWER"
    found = lax.conv_general_dilated(
        image,
        kernel,
        attributes.get("strides", [1] * spatial),
        padding,
        rhs_dilation=attributes.get("dilations", [1] * spatial),
        feature_group_count=attributes.get("group", 1),
    )
    return found if bias is None else found + bias.reshape(1, -1, *[1] * spatial)


def _reshape(numbers: Any, attributes: Attributes, array: Any, shape: Any) -> Any:
    sizes = _plain(shape)
    if not attributes.get("allowzero"):
        sizes = [array.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return array.reshape(sizes)


def _flatten(numbers: Any, attributes: Attributes, array: Any) -> Any:
    axis = attributes.get("axis", 1) % (array.ndim + 1)
    return array.reshape(int(np.prod(array.shape[:axis])), -1)


def _concat(numbers: Any, attributes: Attributes, *arrays: Any) -> Any:
    return numbers.concatenate(arrays, axis=attributes["axis"])


def _transpose(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return numbers.transpose(array, attributes.get("perm"))


def _cast(numbers: Any, attributes: Attributes, array: Any) -> Any:
    if attributes["to"] not in TYPES:
        raise InvalidInput(f"Cast to ONNX's type {attributes['to']} is unknown")
    wanted = np.dtype(TYPES[attributes["to"]])
    return array.astype(wanted if numbers is np else NARROW.get(wanted, wanted))


def _relu(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return numbers.maximum(array, array.dtype.type(0))


def _leaky(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return numbers.where(array < 0, array * np.float32(attributes.get("alpha", 0.01)), array)


def _elu(numbers: Any, attributes: Attributes, array: Any) -> Any:
    low = np.float32(attributes.get("alpha", 1.0)) * numbers.expm1(numbers.minimum(array, 0))
    return numbers.where(array < 0, low, array)


def _sigmoid(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return 1 / (1 + numbers.exp(-array))


def _softplus(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return numbers.logaddexp(array, np.float32(0))


def _clip(
    numbers: Any, attributes: Attributes, array: Any, low: Any = None, high: Any = None
) -> Any:
    low = attributes.get("min") if low is None else low
    high = attributes.get("max") if high is None else high
    array = array if low is None else numbers.maximum(array, low)
    return array if high is None else numbers.minimum(array, high)


def _log_softmax(numbers: Any, attributes: Attributes, array: Any) -> Any:
    if attributes["opset"] < 13 and array.ndim > 2:
        raise InvalidInput("Softmax of more than two axes needs opset 13 or later")
    axis = attributes.get("axis", -1)
    shifted = array - array.max(axis=axis, keepdims=True)
    return shifted - numbers.log(numbers.exp(shifted).sum(axis=axis, keepdims=True))


def _softmax(numbers: Any, attributes: Attributes, array: Any) -> Any:
    return numbers.exp(_log_softmax(numbers, attributes, array))


def _shape(numbers: Any, attributes: Attributes, array: Any) -> Any:
    sizes = array.shape[attributes.get("start", 0) : attributes.get("end")]
    return np.array(sizes, np.int64)


def _constant(numbers: Any, attributes: Attributes) -> Any:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in attributes:
            kind = np.float32 if "float" in name else np.int64
            return attributes[name] if name == "value" else np.array(attributes[name], kind)
    raise InvalidInput("a Constant holds neither a tensor nor numbers")


def _gather(numbers: Any, attributes: Attributes, array: Any, indices: Any) -> Any:
    return numbers.take(array, indices, axis=attributes.get("axis", 0))


def _squeeze(numbers: Any, attributes: Attributes, array: Any, axes: Any = None) -> Any:
    axes = attributes.get("axes") if axes is None else _plain(axes)
    return numbers.squeeze(array, axis=None if axes is None else tuple(axes))


def _unsqueeze(numbers: Any, attributes: Attributes, array: Any, axes: Any = None) -> Any:
    return numbers.expand_dims(array, tuple(attributes["axes"] if axes is None else _plain(axes)))


def _expand(numbers: Any, attributes: Attributes, array: Any, shape: Any) -> Any:
    return numbers.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(_plain(shape))))


def _reduce(name: str) -> Callable[..., Any]:
    def reduced(numbers: Any, attributes: Attributes, array: Any, axes: Any = None) -> Any:
        axes = attributes.get("axes") if axes is None else _plain(axes)
        keep = bool(attributes.get("keepdims", 1))
        return getattr(numbers, name)(array, axis=None if not axes else tuple(axes), keepdims=keep)

    return reduced


def _layer_norm(
    numbers: Any, attributes: Attributes, array: Any, scale: Any, bias: Any = None
) -> Any:
    axes = tuple(range(attributes.get("axis", -1) % array.ndim, array.ndim))
    centred = array - array.mean(axis=axes, keepdims=True)
    spread = numbers.sqrt(
        (centred**2).mean(axis=axes, keepdims=True) + np.float32(attributes.get("epsilon", 1e-5))
    )
    found = centred / spread * scale
    return found if bias is None else found + bias


def _identity(numbers: Any, attributes: Attributes, array: Any, *others: Any) -> Any:
    return array


def _plain(array: Any) -> list[int]:
    """Return numbers that a program needs while it is compiled, such as a shape."""
    if not isinstance(array, np.ndarray):
        raise InvalidInput("a shape depends on the observation")
    return [int(number) for number in array.reshape(-1)]


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Abs": _unary("abs"),
    "Add": _binary("add"),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "Conv": _conv,
    "Div": _div,
    "Dropout": _identity,  # which does nothing outside training
    "Elu": _elu,
    "Exp": _unary("exp"),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _identity,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky,
    "Log": _unary("log"),
    "LogSoftmax": _log_softmax,
    "MatMul": _binary("matmul"),
    "Max": _of_many("maximum"),
    "Min": _of_many("minimum"),
    "Mul": _binary("multiply"),
    "Neg": _unary("negative"),
    "Pow": _binary("power"),
    "ReduceMean": _reduce("mean"),
    "ReduceSum": _reduce("sum"),
    "Relu": _relu,
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Softplus": _softplus,
    "Sqrt": _unary("sqrt"),
    "Squeeze": _squeeze,
    "Sub": _binary("subtract"),
    "Tanh": _unary("tanh"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""What is known: operator → function(numbers, attributes, *inputs)."""
