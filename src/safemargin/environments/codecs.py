"""How one object inside an environment is saved, restored in place and hashed.

A codec knows four things about the objects of a type: what must be saved (`content`), which
objects they refer to (`children`), how to put the content back (`restore`), and what enters the
hash (`encode`). Objects are restored in place, never replaced, so that all references to them,
also from within a C extension, stay valid.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

Reference = Callable[[Any], Any]
"""Returns what stands for a child in an encoding: an atom's value, another object's number."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Immutable, without children, and hashed by value."""

UNSEEN = b"safemargin: unseen"
"""Marks, in an encoding, something that a restore puts back but that the hash cannot see."""


def qualified_name(cls: type) -> str:
    """Return 'package.module.Class'."""
    return f"{cls.__module__}.{cls.__qualname__}"


class Codec:
    """The base: an object that is kept by reference and has no state to save."""

    mutable: ClassVar[bool] = False
    opaque: ClassVar[bool] = False
    """Whether it may hold state that cannot be seen from Python."""
    by_value: ClassVar[bool] = False
    """Whether it is immutable, so that equal objects are interchangeable."""
    unsafe: ClassVar[bool] = False
    """Whether restoring the attributes around it may crash the process."""
    can_reseed: ClassVar[bool] = False

    def content(self, value: Any) -> Any:
        """Return what must be saved, apart from the children's own content."""
        return None

    def children(self, value: Any) -> Iterable[Any]:
        """Return the objects that it refers to directly."""
        return ()

    def restore(self, value: Any, content: Any) -> None:
        """Put the content back into the object it came from."""

    def encode(self, value: Any, reference: Reference) -> Any:
        """Return nested tuples and lists of atoms, equal exactly when the states are equal."""
        return type(value).__qualname__

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        """Give a random generator fresh state."""


class Named(Codec):
    """Classes, modules, loggers, builtin functions: constants, identified by name."""

    by_value = True

    def encode(self, value: Any, reference: Reference) -> Any:
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
        return (type(value).__qualname__, name)


class Function(Named):
    """A function: identified by name, and by code where it was made inside another function.

    The values in its closure or its defaults are not looked at. Gymnasium's own wrappers make such
    functions once, with constants (ClipReward, RescaleAction, …).
    """

    def encode(self, value: Any, reference: Reference) -> Any:
        named = super().encode(value, reference)
        local = "<" in value.__qualname__  # <locals>, <lambda>
        captured = value.__closure__ or (local and (value.__defaults__ or value.__kwdefaults__))
        if captured and not (value.__module__ or "").startswith("gymnasium.wrappers."):
            return (UNSEEN, *named)
        code = value.__code__
        position = (code.co_firstlineno, code.co_linetable, code.co_code) if local else ()
        return (*named, *position)


class Printed(Codec):
    """Immutable values that `repr` shows in full: dates, paths, fractions, dtypes, enum members."""

    by_value = True

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, repr(value))


class NumpyScalar(Codec):
    """A numpy scalar, which is immutable."""

    by_value = True

    def encode(self, value: Any, reference: Reference) -> Any:
        return (value.dtype.str, value.tobytes())


class Unhashed(Codec):
    """Kept by reference; the hash does not distinguish one from another."""

    def encode(self, value: Any, reference: Reference) -> Any:
        return (UNSEEN, type(value).__qualname__)


class Opaque(Unhashed):
    """An object of a C extension, whose state cannot be seen."""

    opaque = True


class Unsafe(Opaque):
    """A handle to a C++ object that may be gone: touching it after a restore can crash."""

    unsafe = True


class Model(Codec):
    """The constants of a simulation, in an object of a C extension."""

    opaque = True


class Unseen(Codec):
    """A layer that only observes: nothing in it can change what the environment does."""

    def children(self, value: Any) -> Iterable[Any]:
        return (value.env,)

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, reference(value.env))


class BoundMethod(Codec):
    """A method of an object: only the object may change."""

    def children(self, value: Any) -> Iterable[Any]:
        return (value.__self__,)

    def encode(self, value: Any, reference: Reference) -> Any:
        return (value.__func__.__qualname__, reference(value.__self__))


class Parts(Codec):
    """The base of what is nothing but the objects it refers to."""

    def encode(self, value: Any, reference: Reference) -> Any:
        return [reference(child) for child in self.children(value)]


class Partial(Parts):
    """functools.partial: its arguments may change."""

    def children(self, value: Any) -> Iterable[Any]:
        return (value.func, *value.args, *value.keywords.values())


class Frozen(Codec):
    """Tuples: immutable, though their members may not be."""

    by_value = True

    def children(self, value: Any) -> Iterable[Any]:
        return tuple(value)

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, *map(reference, value))


class ListLike(Frozen):
    """Lists, deques, bytearrays."""

    mutable = True
    by_value = False

    def content(self, value: Any) -> Any:
        return tuple(value)

    def restore(self, value: Any, content: Any) -> None:
        value.clear()
        value.extend(content)

    def encode(self, value: Any, reference: Reference) -> Any:
        return [type(value).__qualname__, *map(reference, value)]


class DictLike(Codec):
    """Dictionaries; their order matters, because a loop over them sees it."""

    mutable = True

    def content(self, value: Any) -> Any:
        return tuple(value.items())

    def children(self, value: Any) -> Iterable[Any]:
        return (*value.keys(), *value.values())

    def restore(self, value: Any, content: Any) -> None:
        value.clear()
        for key, item in content:
            value[key] = item

    def encode(self, value: Any, reference: Reference) -> Any:
        parts = itertools.chain.from_iterable(value.items())
        return [type(value).__qualname__, *map(reference, parts)]


class Array(Codec):
    """numpy arrays; arrays of objects have children."""

    mutable = True

    def content(self, value: Any) -> Any:
        return value.copy()

    def children(self, value: Any) -> Iterable[Any]:
        return tuple(value.ravel()) if value.dtype.hasobject else ()

    def restore(self, value: Any, content: Any) -> None:
        if value.flags.writeable:
            np.copyto(value, content, casting="no")

    def encode(self, value: Any, reference: Reference) -> Any:
        if value.dtype.hasobject:
            return ("object", value.shape, *map(reference, value.ravel()))
        return (value.dtype.str, value.shape, value.tobytes())


def _plain(state: Any) -> Any:
    """Convert a generator's state into nested lists of atoms."""
    if isinstance(state, dict):
        return [_plain(item) for item in state.values()]
    if isinstance(state, tuple):
        return [_plain(item) for item in state]
    if isinstance(state, np.ndarray):
        return state.tobytes()
    return state.item() if isinstance(state, np.generic) else state


class RandomSource(Codec):
    """A random generator: all of its content is hashed."""

    mutable = True
    can_reseed = True

    def encode(self, value: Any, reference: Reference) -> Any:
        return _plain(self.content(value))


class BitGenerator(RandomSource):
    """numpy's sources of random bits."""

    def content(self, value: Any) -> Any:
        return value.state

    def restore(self, value: Any, content: Any) -> None:
        value.state = content

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        value.state = type(value)(int(generator.integers(2**63))).state


class Generator(Codec):
    """numpy.random.Generator: all its state is in its source of bits."""

    def children(self, value: Any) -> Iterable[Any]:
        return (value.bit_generator,)

    def encode(self, value: Any, reference: Reference) -> Any:
        return reference(value.bit_generator)


class RandomState(RandomSource):
    """numpy's legacy generator."""

    def content(self, value: Any) -> Any:
        return value.get_state(legacy=False)

    def restore(self, value: Any, content: Any) -> None:
        value.set_state(content)

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        value.seed(int(generator.integers(2**32)))


class PythonRandom(RandomSource):
    """random.Random."""

    def content(self, value: Any) -> Any:
        return value.getstate()

    def restore(self, value: Any, content: Any) -> None:
        value.setstate(content)

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        value.seed(int(generator.integers(2**63)))


class SpaceState(Parts):
    """A Gymnasium space: constant, except for the generator behind its `sample`."""

    def children(self, value: Any) -> Iterable[Any]:
        below = getattr(value, "spaces", ())
        parts = below.values() if hasattr(below, "values") else below
        generator = value._np_random
        return tuple(parts) if generator is None else (*parts, generator)


class Custom(Codec):
    """A type for which a user registered functions that save and restore it."""

    mutable = True

    def __init__(
        self,
        save: Callable[[Any], Any],
        restore: Callable[[Any, Any], None],
        reseed: Callable[[Any, np.random.Generator], None] | None,
    ) -> None:
        self._save, self._restore, self._reseed = save, restore, reseed
        self.can_reseed = reseed is not None  # type: ignore[misc]

    def content(self, value: Any) -> Any:
        # If the user's function forgot a .copy(), the snapshot must not share the live state.
        return copy.deepcopy(self._save(value))

    def restore(self, value: Any, content: Any) -> None:
        self._restore(value, copy.deepcopy(content))

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, reference(self._save(value)))

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        if self._reseed is not None:
            self._reseed(value, generator)
