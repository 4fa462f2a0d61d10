"""Pictures that agents send, as small JPEG or PNG files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from safemargin.errors import InvalidInput

WIDEST = 480
"""Pixels; wider pictures are scaled down."""


def as_picture(given: Any) -> bytes:
    """Return a JPEG or PNG file as it is, an array [height, width(, 3)] of bytes as JPEG."""
    if isinstance(given, bytes | bytearray | memoryview):
        picture = bytes(given)
        if picture_kind(picture) is None:
            raise InvalidInput("a picture must be a JPEG or PNG file, or an array of bytes")
        return picture
    from PIL import Image

    array = np.asarray(given)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        raise InvalidInput(
            f"a picture must be an array [height, width, 3] of bytes, got {array.dtype} "
            f"{list(array.shape)}"
        )
    image = Image.fromarray(array)
    if image.width > WIDEST:
        image = image.resize((WIDEST, max(1, round(image.height * WIDEST / image.width))))
    target = io.BytesIO()
    image.save(target, "JPEG", quality=82)
    return target.getvalue()


def picture_kind(picture: bytes) -> str | None:
    """Return the media type, judged by the first bytes; None for anything but JPEG and PNG."""
    if picture[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    return "image/png" if picture[:8] == b"\x89PNG\r\n\x1a\n" else None
