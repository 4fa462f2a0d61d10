"""Protocol buffers, read field by field: what ONNX files are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of every field: an int for whole numbers, bytes otherwise."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        field, wire = tag >> 3, tag & 7
        if wire == VARINT:
            number, position = _varint(message, position)
            yield field, number - (1 << 64) if number >> 63 else number
            continue
        if wire == BYTES:
            size, position = _varint(message, position)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not used in ONNX files")
        yield field, message[position : position + size]
        position += size


def whole_numbers(packed: bytes) -> Iterator[int]:
    """Yield the numbers of a field that holds many of them."""
    position = 0
    while position < len(packed):
        number, position = _varint(packed, position)
        yield number - (1 << 64) if number >> 63 else number


def message(field: int, content: bytes) -> bytes:
    """Return a field that holds bytes."""
    return _as_varint(field << 3 | BYTES) + _as_varint(len(content)) + content


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
