"""The registry of codecs by type, and the codec for objects of classes written in Python."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import logging
import pathlib
import random
import re
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from safemargin.environments import codecs
from safemargin.environments.ale import EmulatorState
from safemargin.environments.codecs import Codec, Reference, qualified_name
from safemargin.environments.pygame import CODECS as PYGAME
from safemargin.errors import InvalidInput

_CONSTANT_ATTRIBUTES = frozenset(
    {
        "metadata", "_metadata", "spec", "_cached_spec", "render_mode", "_saved_kwargs",
        "_ezpickle_args", "_ezpickle_kwargs", "reward_range",
    }
)  # fmt: skip
"""Attributes of every gymnasium.Env that are set when it is made."""

_TOY_TABLES = frozenset({"P", "desc", "initial_state_distrib", "nS", "nA", "locs", "_cliff"})
_CONSTANTS_BY_NAME: dict[str, frozenset[str]] = {
    # Transition tables of thousands of small objects that never change.
    "gymnasium.envs.toy_text.taxi.TaxiEnv": _TOY_TABLES,
    "gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv": _TOY_TABLES,
    "gymnasium.envs.toy_text.cliffwalking.CliffWalkingEnv": _TOY_TABLES,
    # Made once, never changed, and as large as all the rest of a snapshot.
    "safemargin.environments.atari.GameStart": frozenset({"_first_state"}),
    # The functions and what JAX compiled from them.
    "safemargin.environments.functional.wrapped.FunctionalGym": frozenset(
        {"functional", "_programs", "_jax", "_structure"}
    ),
}


class SetLike(codecs.ListLike):
    """Sets; the order of iteration does not matter."""

    def restore(self, value: Any, content: Any) -> None:
        value.clear()
        value.update(content)

    def encode(self, value: Any, reference: Reference) -> Any:
        from safemargin.environments.graph import encoded_bytes

        return (type(value).__qualname__, *sorted(encoded_bytes([item]) for item in value))


class FrozenSetLike(SetLike):
    """Frozensets: nothing to restore."""

    mutable = False
    by_value = True


class PlainObject(Codec):
    """An object of a class written in Python: its attributes are its whole state."""

    mutable = True
    _not_hashed: frozenset[str] = frozenset()

    def __init__(self, cls: type) -> None:
        self._slots = {
            f".{member.__name__}.{member.__objclass__.__qualname__}": member
            for base in cls.__mro__
            for member in vars(base).values()
            if isinstance(member, types.MemberDescriptorType)
        }
        self._skipped: frozenset[str] = (
            _CONSTANT_ATTRIBUTES if issubclass(cls, gym.Env) else frozenset()
        )
        for base in cls.__mro__:
            self._skipped |= _CONSTANTS_BY_NAME.get(qualified_name(base), frozenset())
        self._has_attributes = cls.__dictoffset__ != 0

    def content(self, value: Any) -> dict[str, Any]:
        """Return the attributes that are saved, by name."""
        skipped = self._skipped
        found = {}
        if self._has_attributes:
            found = {name: item for name, item in value.__dict__.items() if name not in skipped}
        for name, member in self._slots.items():
            with contextlib.suppress(AttributeError):  # an empty slot
                found[name] = member.__get__(value, type(value))
        return found

    def children(self, value: Any) -> Iterable[Any]:
        return self.content(value).values()

    def restore(self, value: Any, content: Any) -> None:
        if self._has_attributes:
            present = value.__dict__  # not setattr: a class may forbid or translate that
            for name in [name for name in present if name not in content]:
                if name not in self._skipped:
                    del present[name]
            present.update(
                content
                if not self._slots
                else {name: item for name, item in content.items() if name not in self._slots}
            )
        for name, member in self._slots.items():
            if name in content:
                member.__set__(value, content[name])
            else:
                with contextlib.suppress(AttributeError):  # it was empty and still is
                    member.__delete__(value)

    def encode(self, value: Any, reference: Reference) -> Any:
        attributes = self.content(value)
        flat = [type(value).__qualname__]
        for name in sorted(attributes.keys() - self._not_hashed):
            flat += name, reference(attributes[name])
        return flat


class Statistics(PlainObject):
    """The return and length of this episode are hashed; clocks and past episodes only saved."""

    _not_hashed = frozenset(
        {"episode_start_time", "time_queue", "episode_count", "return_queue", "length_queue"}
    )


class ExtendedContainer(Codec):
    """A container subclass written in Python: the container and its attributes."""

    mutable = True

    def __init__(self, container: Codec, cls: type) -> None:
        self._container, self._object = container, PlainObject(cls)

    def content(self, value: Any) -> Any:
        return self._container.content(value), self._object.content(value)

    def children(self, value: Any) -> Iterable[Any]:
        return (*self._container.children(value), *self._object.children(value))

    def restore(self, value: Any, content: Any) -> None:
        self._container.restore(value, content[0])
        self._object.restore(value, content[1])

    def encode(self, value: Any, reference: Reference) -> Any:
        return (
            self._container.encode(value, reference),
            self._object.encode(value, reference),
        )


def _load_mujoco(cls: type) -> Codec:
    from safemargin.environments.mujoco import SimulationState

    return SimulationState()


_STATISTICS = "gymnasium.wrappers.common.RecordEpisodeStatistics"


def _load_bridge(cls: type) -> Codec:
    from safemargin.environments import bridge

    return bridge.RemoteState() if cls is bridge.Remote else bridge.RandomState()


def _load_statistics(cls: type) -> Codec:
    # A subclass may use its clocks and past episodes in any way.
    return Statistics(cls) if qualified_name(cls) == _STATISTICS else PlainObject(cls)


def _always(codec: Codec) -> Callable[[type], Codec]:
    return lambda cls: codec


_BY_NAME: dict[str, Callable[[type], Codec]] = {
    "ale_py._ale_py.ALEInterface": lambda cls: EmulatorState(),
    "ale_py._ale_py.ALEState": lambda cls: codecs.Unhashed(),  # immutable
    "mujoco._structs.MjData": _load_mujoco,
    "mujoco._structs.MjModel": lambda cls: codecs.Model(),
    "gymnasium.wrappers.common.PassiveEnvChecker": lambda cls: codecs.Unseen(),
    _STATISTICS: _load_statistics,
    "safemargin.environments.pettingzoo.Partners": lambda cls: codecs.Codec(),  # never changes
    "safemargin.environments.bridge.Remote": _load_bridge,
    "safemargin.environments.bridge.RemoteRandom": _load_bridge,
    **{name: _always(codec) for name, codec in PYGAME.items()},
}

_BY_TYPE: list[tuple[type | tuple[type, ...], Codec]] = [
    (np.generic, codecs.NumpyScalar()),
    (np.random.Generator, codecs.Generator()),
    (np.random.BitGenerator, codecs.BitGenerator()),
    (np.random.RandomState, codecs.RandomState()),
    (random.Random, codecs.PythonRandom()),
    (gym.Space, codecs.SpaceState()),
    (types.MethodType, codecs.BoundMethod()),
    (functools.partial, codecs.Partial()),
    (types.FunctionType, codecs.Function()),
    (
        (type, types.BuiltinFunctionType, types.ModuleType, logging.Logger,
         property, np.ufunc, types.MethodDescriptorType, types.WrapperDescriptorType),
        codecs.Named(),
    ),
    (
        (enum.Enum, range, slice, np.dtype, pathlib.PurePath, datetime.date, datetime.time,
         datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, re.Pattern,
         type(Ellipsis), type(NotImplemented)),
        codecs.Printed(),
    ),
    ((EnvSpec, WrapperSpec), Codec()),
    (weakref.ReferenceType, codecs.Unhashed()),
]  # fmt: skip

_CONTAINERS: list[tuple[type, Codec]] = [
    (np.ndarray, codecs.Array()),
    (dict, codecs.DictLike()),
    (list, codecs.ListLike()),
    (deque, codecs.ListLike()),
    (bytearray, codecs.ListLike()),
    (set, SetLike()),
    (tuple, codecs.Frozen()),
    (frozenset, FrozenSetLike()),
]

_registered: dict[type, Codec] = {}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as every class written in Python is


def register_state(
    env_type: type,
    *,
    save: Callable[[Any], Any],
    restore: Callable[[Any, Any], None],
    reseed: Callable[[Any, np.random.Generator], None] | None = None,
) -> None:
    """Register how environments (or wrappers, or any objects inside them) of a type are saved.

    `save(env)` returns plain data: numbers, strings, arrays, lists, dictionaries. `restore(env,
    data)` puts it back. `reseed(env, generator)` reseeds the environment's own random generator;
    leave it out if there is none. Nothing else in the object is looked at.
    """
    if not isinstance(env_type, type):
        raise InvalidInput(f"register_state expects a class, got {env_type!r}")
    _registered[env_type] = codecs.Custom(save, restore, reseed)
    _classify.cache_clear()


@functools.cache
def _classify(cls: type) -> Codec:
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
        if (load := _BY_NAME.get(qualified_name(base))) is not None:
            return load(cls)
    if hasattr(cls, "__swig_destroy__") or hasattr(cls, "thisown"):
        return codecs.Unsafe()
    for kinds, codec in _BY_TYPE:
        if issubclass(cls, kinds):
            return codec
    for kind, codec in _CONTAINERS:
        if cls is kind:
            return codec
        if issubclass(cls, kind):
            if _written_in_python(cls, but=kind) and cls.__dictoffset__ != 0:
                return ExtendedContainer(codec, cls)
            return codec
    if _written_in_python(cls):
        return PlainObject(cls)
    if issubclass(cls, tuple(codecs.ATOMS)):
        return codecs.Printed()
    return codecs.Opaque()


codec_of: Callable[[type], Codec] = _classify
"""Returns the codec for a type."""


def _written_in_python(cls: type, but: type = object) -> bool:
    """Whether attributes and slots hold the whole state of objects of this class."""
    if type(cls).__module__.startswith(("pybind11", "nanobind", "Boost.Python", "sip", "Shiboken")):
        return False
    slots = 0
    for base in cls.__mro__:
        if base in (object, but) or base in but.__mro__:
            continue
        if not base.__flags__ & _HEAP_TYPE:
            return False
        slots += sum(
            isinstance(member, types.MemberDescriptorType) for member in vars(base).values()
        )
    pointer = 8
    unexplained = cls.__basicsize__ - but.__basicsize__ - pointer * slots
    if cls.__dictoffset__ == 0 and slots == 0:
        return unexplained <= 0  # neither attributes nor room for anything else
    return unexplained <= 2 * pointer  # the attribute dictionary and the list of weak references
