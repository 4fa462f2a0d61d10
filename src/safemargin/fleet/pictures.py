"""Pictures of what agents see: small enough for a tile, and no more than people look at."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from safemargin.errors import InvalidInput
from safemargin.fleet.agents import Agent
from safemargin.fleet.journal import Page
from safemargin.fleet.messages import picture_kind

WIDEST = 480
"""Pixels; wider pictures are made smaller."""
FASTEST = 0.25
A_SECOND = 40
"""Of all agents together, on tiles; the one that somebody looks at sends each."""


def pace_pictures(agents: Iterable[Agent], pages: Collection[Page]) -> None:
    """Tell agents how many seconds there may be between pictures; None: nobody looks."""
    linked = [agent for agent in agents if agent.link is not None]
    tile = max(FASTEST, len(linked) / A_SECOND) if pages else None
    looked_at = {page.looks_at for page in pages}
    for agent in linked:
        closely = agent.index in looked_at or agent.control is not None
        every = 0.0 if closely else tile
        if agent.link is not None and (agent.picture_every != every or not agent.paced):
            agent.picture_every, agent.paced = every, True
            agent.link.send({"kind": "pictures", "every": every})


def as_picture(given: Any) -> bytes:
    """A JPEG or PNG file as it is; an array [height, width, 3] or [height, width] as JPEG."""
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
