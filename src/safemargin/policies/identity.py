"""Hashes of what decides a policy's scores: equal hashes, equal agents."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from safemargin.core.former_names import recorded_class, recorded_module

PREFIX = "sha256:"


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def file_identity(contents: Iterable[bytes]) -> str:
    """Hash a model file together with the files that hold its external weights."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return PREFIX + digest.hexdigest()


def weights_identity(structure: Iterable[str], weights: Mapping[str, Any]) -> str:
    """Hash named arrays, in the order of their names, and the layers they belong to."""
    digest = hashlib.sha256()
    for line in structure:
        digest.update(f"layer {line}\n".encode())
    for name in sorted(weights):
        array = np.asarray(weights[name])
        digest.update(f"weight {name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return PREFIX + digest.hexdigest()


def function_identity(function: Any) -> str:
    """Hash a function's source, constants, defaults, closure and the globals it names.

    This is a best effort. Of an object that is neither numbers, text nor a container of them, only
    the class and the attributes are seen; of what is read during a call (a file, a network),
    nothing.
    """
    digest = hashlib.sha256()
    _add(digest, function, seen={})
    return PREFIX + digest.hexdigest()


def _add(digest: _Digest, value: Any, *, seen: dict[int, int]) -> None:
    """Add one value, of any kind, to the digest."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        digest.update(f"{type(value).__name__} {value!r}\n".encode())
        return
    if id(value) in seen:  # a cycle or a shared value: its number in the order of discovery
        digest.update(f"again {seen[id(value)]}\n".encode())
        return
    seen[id(value)] = len(seen)
    if isinstance(value, types.ModuleType):
        digest.update(f"module {recorded_module(value.__name__)}\n".encode())
    elif isinstance(value, np.ndarray | np.generic) or _is_tensor(value):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        digest.update(f"array {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=repr):
            _add(digest, key, seen=seen)
            _add(digest, value[key], seen=seen)
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)}\n".encode())
        for item in value:
            _add(digest, item, seen=seen)
    elif isinstance(value, set | frozenset):
        digest.update(f"set {sorted(map(repr, value))}\n".encode())
    elif isinstance(value, functools.partial):
        digest.update(b"partial\n")
        for item in (value.func, value.args, value.keywords):
            _add(digest, item, seen=seen)
    elif isinstance(value, types.MethodType):
        digest.update(b"method\n")
        _add(digest, value.__func__, seen=seen)
        _add(digest, value.__self__, seen=seen)
    elif isinstance(value, types.FunctionType):
        _add_function(digest, value, seen=seen)
    elif isinstance(value, types.CodeType):
        _add_code(digest, value, seen=seen)
    else:
        kind = value if isinstance(value, type) else type(value)
        digest.update(f"{recorded_class(kind)}\n{_source(kind)}\n".encode())
        if not isinstance(value, type):
            _add(digest, getattr(value, "__dict__", None), seen=seen)


def _add_function(digest: _Digest, function: types.FunctionType, *, seen: dict[int, int]) -> None:
    digest.update(f"function {_source(function)}\n".encode())
    _add_code(digest, function.__code__, seen=seen)
    _add(digest, function.__defaults__, seen=seen)
    _add(digest, function.__kwdefaults__, seen=seen)
    for cell in function.__closure__ or ():
        try:
            _add(digest, cell.cell_contents, seen=seen)
        except ValueError:  # a name that has no value yet
            digest.update(b"empty cell\n")
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            digest.update(f"global {name}\n".encode())
            _add(digest, function.__globals__[name], seen=seen)


def _add_code(digest: _Digest, code: types.CodeType, *, seen: dict[int, int]) -> None:
    """Names and constants distinguish two lambdas on one line; bytecode depends on the Python."""
    digest.update(f"names {code.co_names} {code.co_varnames}\n".encode())
    for constant in code.co_consts:
        _add(digest, constant, seen=seen)


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # built-in, or typed at a prompt
        return ""


def _is_tensor(value: Any) -> bool:
    """Whether it is an array of another library (JAX, PyTorch) that numpy can read."""
    return hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape")
