"""Saving, restoring and hashing all objects that can be reached from an environment's layers."""

from __future__ import annotations

import hashlib
import itertools
import marshal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from safemargin.environments.codecs import ATOMS, UNSEEN, Codec, Custom, qualified_name
from safemargin.environments.objects import PlainObject, codec_of

Node = tuple[Codec, Any, Any]
"""A codec, the live object, and the content it had."""

_WITHOUT_REFERENCES = 2  # the last marshal version whose bytes depend on values alone


def capture(roots: Iterable[Any]) -> tuple[Node, ...]:
    """Save the content of every object that can be reached from the roots."""
    # Not `_reachable`, which is in a fixed order: this is done at every save, and counts.
    nodes: list[Node] = []
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        codec = codec_of(type(value))
        if codec.mutable:
            nodes.append((codec, value, codec.content(value)))
        pending.extend([child for child in codec.children(value) if type(child) not in ATOMS])
    return tuple(nodes)


def restore(nodes: Iterable[Node]) -> None:
    """Put the saved content back into every object."""
    for codec, value, content in nodes:
        codec.restore(value, content)


def random_sources(roots: Iterable[Any]) -> list[tuple[Codec, Any]]:
    """Return the random generators that can be reseeded, each once, in a fixed order."""
    return [(codec, value) for codec, value in _reachable(roots) if codec.can_reseed]


def without_reseed(roots: Iterable[Any]) -> list[str]:
    """Return the names of types that were registered without `reseed`."""
    found = [
        type(value).__name__
        for codec, value in _reachable(roots)
        if isinstance(codec, Custom) and not codec.can_reseed
    ]
    return list(dict.fromkeys(found))


def _reachable(roots: Iterable[Any], seen: set[int] | None = None) -> Iterator[tuple[Codec, Any]]:
    """Yield every object that can be reached from the roots, each once, in a fixed order.

    Objects whose id is in `seen` are left out; those that are reached are added to it.
    """
    pending = list(roots)[::-1]
    of_roots = {id(root) for root in pending}  # the layer below a wrapper is itself a root
    seen = set() if seen is None else seen
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        codec = codec_of(type(value))
        yield codec, value
        children = [
            child
            for child in codec.children(value)
            if type(child) not in ATOMS and id(child) not in of_roots
        ]
        pending.extend(reversed(children))


def encodings(roots: Sequence[Any]) -> list[list[Any]]:
    """Return one encoding per root; an object shared by two roots is encoded under the first."""
    numbers: dict[int, int] = {}
    alive: list[Any] = []  # or a temporary object's id could be reused
    pending: list[Any] = []

    def reference(value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        number = numbers.get(id(value))
        if number is None:
            codec = codec_of(kind)
            if codec.by_value:
                return codec.encode(value, reference)
            number = numbers[id(value)] = len(numbers)
            alive.append(value)
            pending.append(value)
        return (number,)

    for root in roots:
        # An immutable one, e.g. a tuple, is encoded wherever it occurs, with what it refers to.
        if not codec_of(type(root)).by_value:
            reference(root)
    encoded = []
    for root in roots:
        pending.clear()
        # Encoding an object may add to `pending`, which the loop then reaches too.
        encoded.append([_encode(value, reference) for value in itertools.chain([root], pending)])
    return encoded


def _encode(value: Any, reference: Any) -> Any:
    if type(value) in ATOMS:
        return value
    return codec_of(type(value)).encode(value, reference)


def encoded_bytes(roots: Sequence[Any]) -> bytes:
    """Return the encoding of some objects as bytes."""
    return marshal.dumps(encodings(roots), _WITHOUT_REFERENCES)


def recorded_bytes(roots: Sequence[Any]) -> bytes:
    """Return the encoding that identities contain.

    It leaves out the arrays inside a tuple, which recorded hashes did not see.
    """
    parts = zip(roots, encodings(roots), strict=True)
    seen = [part[:1] if codec_of(type(root)).by_value else part for root, part in parts]
    return marshal.dumps(seen, _WITHOUT_REFERENCES)


def digest(roots: Sequence[Any]) -> bytes:
    """Return 16 bytes that are equal exactly when all visible state is equal."""
    return hashlib.sha256(encoded_bytes(roots)).digest()[:16]


def whole_digest(roots: Sequence[Any]) -> bytes | None:
    """Return the digest, or None if it leaves something out and unequal states may look equal."""
    encoded = encoded_bytes(roots)
    return None if UNSEEN in encoded else hashlib.sha256(encoded).digest()[:16]


def digests(roots: Sequence[Any]) -> list[bytes]:
    """Return one digest per root."""
    return [
        hashlib.sha256(marshal.dumps(parts, _WITHOUT_REFERENCES)).digest()[:16]
        for parts in encodings(roots)
    ]


def opaque_attributes(layers: Sequence[Any], *, only_unsafe: bool) -> Iterator[str]:
    """Yield 'Layer.attribute (type)' for each attribute that leads to something opaque."""
    for layer in layers:
        codec = codec_of(type(layer))
        if not isinstance(codec, PlainObject):
            continue
        seen = set(map(id, layers))
        for name, attribute in codec.content(layer).items():
            for inner, value in _reachable([attribute], seen):
                if inner.unsafe if only_unsafe else inner.opaque:
                    kind = qualified_name(type(value))
                    yield f"{type(layer).__name__}.{name.strip('.')} ({kind})"
                    break


def copied(value: Any) -> Any:
    """Copy an observation or action; atoms and unknown types are returned as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(copied(item) for item in value)
    return value
