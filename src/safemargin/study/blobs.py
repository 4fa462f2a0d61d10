"""Converts arrays to and from the compressed bytes that a study's database holds."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Container

import numpy as np

from safemargin.core.records import Array
from safemargin.errors import StudyCorrupt

MOST_BYTES = 1 << 30
"""No array is unpacked to more than this: a million steps with the scores of 128 actions."""

_HEADER = re.compile(rb"([<|][biuf][1248]) ([0-9,]{0,60})\n")


def pack(array: Array) -> bytes:
    """Return an array as compressed bytes: 'dtype shape\\n' and the data."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    header = f"{little.dtype.str} {','.join(map(str, little.shape))}\n".encode()
    return zlib.compress(header + little.tobytes(), 6)


def unpack(blob: bytes, *, rows: Container[int] | None = None, of: object = "") -> Array:
    """Return the array that `pack` was given; StudyCorrupt if the bytes have changed.

    `rows` are the lengths that the array may have, and `of` is whose it is, for the error. Nothing
    is unpacked beyond the size that the header states, so a small blob cannot fill the memory.
    """
    try:
        expander = zlib.decompressobj()
        begin = expander.decompress(blob, 128)
        header = _HEADER.match(begin)
        if header is None:
            raise ValueError("it does not begin with the header of an array")
        dtype = np.dtype(header[1].decode())
        shape = [int(size) for size in header[2].split(b",") if size]
        if rows is not None and (not shape or shape[0] not in rows):
            raise ValueError(f"it has the shape {shape}, which cannot be its length")
        size = math.prod(shape) * dtype.itemsize
        if size > MOST_BYTES:
            raise ValueError(f"it would take {size:,} bytes, more than any array of a study")
        data = begin[header.end() :]
        data += expander.decompress(expander.unconsumed_tail, max(size - len(data), 0) + 1)
        if len(data) != size or not expander.eof:
            raise ValueError(f"its data do not take the {size:,} bytes of its shape")
        return np.frombuffer(data, dtype).reshape(shape)
    except (zlib.error, TypeError, ValueError) as error:
        where = f"{of}: " if of else ""
        raise StudyCorrupt(
            f"an array in the study's database is damaged ({where}{error}); "
            "restore study.db from a copy"
        ) from error
