"""Hashes of what decides a policy's scores: equal hashes, equal agents."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from safemargin.core.former_names import recorded_class, recorded_module
from safemargin.core.importing import CACHED

PREFIX = "sha256:"


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
    hashed = _Hash()
    hashed.add(function)
    return PREFIX + hashed.digest.hexdigest()


class _Hash:
    """A hash of values of any kind."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._seen: dict[int, int] = {}

    def _add_all(self, label: str, *values: Any) -> None:
        """Add a line of text, then some values."""
        self.digest.update(f"{label}\n".encode())
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Add one value."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self._add_all(f"{type(value).__name__} {value!r}")
        elif id(value) in self._seen:  # a cycle or a shared value: its number as it was found
            self._add_all(f"again {self._seen[id(value)]}")
        else:
            self._seen[id(value)] = len(self._seen)
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            self._add_all(f"module {recorded_module(value.__name__)}")
        elif isinstance(value, np.ndarray | np.generic) or _is_tensor(value):
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
            self._add_all(f"array {array.dtype.str} {array.shape}")
            self.digest.update(np.ascontiguousarray(array).tobytes())
        elif isinstance(value, Mapping):
            keys = sorted(value, key=repr)
            items = itertools.chain.from_iterable((key, value[key]) for key in keys)
            self._add_all(f"mapping {len(value)}", *items)
        elif isinstance(value, list | tuple):
            self._add_all(f"sequence {len(value)}", *value)
        elif isinstance(value, set | frozenset):
            self._add_all(f"set {sorted(map(repr, value))}")
        elif isinstance(value, functools.partial):
            self._add_all("partial", value.func, value.args, value.keywords)
        elif isinstance(value, types.MethodType):
            self._add_all("method", value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, CACHED):
            self._add_all("cached", value.__wrapped__)
        else:
            kind = value if isinstance(value, type) else type(value)
            attributes = () if kind is value else (getattr(value, "__dict__", None),)
            self._add_all(f"{recorded_class(kind)}\n{_source(kind)}", *attributes)

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_all(f"function {_source(function)}")
        self._add_code(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # a name that has no value yet
                self._add_all("empty cell")
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self._add_all(f"global {name}", function.__globals__[name])

    def _add_code(self, code: types.CodeType) -> None:
        """Add what tells two lambdas on one line apart; bytecode depends on the Python."""
        self._add_all(f"names {code.co_names} {code.co_varnames}", *code.co_consts)


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
