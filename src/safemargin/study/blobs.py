"""Converts arrays to and from the compressed bytes that a study's database holds."""

from __future__ import annotations

import zlib

import numpy as np

from safemargin.core.records import Array
from safemargin.errors import StudyCorrupt


def pack(array: Array) -> bytes:
    """Return an array as compressed bytes: 'dtype shape\\n' and the data."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    header = f"{little.dtype.str} {','.join(map(str, little.shape))}\n".encode()
    return zlib.compress(header + little.tobytes(), 6)


def unpack(blob: bytes) -> Array:
    """Return the array that `pack` was given; StudyCorrupt if the bytes have changed."""
    try:
        header, data = zlib.decompress(blob).split(b"\n", 1)
        dtype, shape = header.decode().split(" ")
        return np.frombuffer(data, dtype).reshape([int(size) for size in shape.split(",") if size])
    except (zlib.error, TypeError, ValueError) as error:
        raise StudyCorrupt(
            f"an array in the study's database is damaged ({error}); restore study.db from a copy"
        ) from error
