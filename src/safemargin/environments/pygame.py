"""Objects of pygame (or pygame-ce) as part of a snapshot: rectangles, vectors, pictures, masks.

Games written with pygame keep positions in them, and some observe what they have drawn.
"""

from __future__ import annotations

import hashlib
from typing import Any

from safemargin.environments.codecs import Codec, Reference


class Numbers(Codec):
    """A Rect, FRect, Vector2 or Vector3: a few numbers."""

    mutable = True

    def content(self, value: Any) -> Any:
        return tuple(value)

    def restore(self, value: Any, content: Any) -> None:
        value.update(*content)

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, *value)


class Picture(Codec):
    """A Surface: all of its pixels."""

    mutable = True

    def content(self, value: Any) -> Any:
        return value.get_buffer().raw

    def restore(self, value: Any, content: Any) -> None:
        value.get_buffer().write(content, 0)

    def encode(self, value: Any, reference: Reference) -> Any:
        pixels = hashlib.sha256(value.get_view("0")).digest()
        return (type(value).__qualname__, value.get_size(), pixels)


class Shape(Codec):
    """A Mask: which pixels of a picture count as solid."""

    mutable = True

    def content(self, value: Any) -> Any:
        return value.copy()

    def restore(self, value: Any, content: Any) -> None:
        value.clear()
        value.draw(content, (0, 0))

    def encode(self, value: Any, reference: Reference) -> Any:
        return (type(value).__qualname__, value.get_size(), bytes(memoryview(value)))


class Pace(Codec):
    """A Clock, which slows the display of a game down and does not change the game."""


CODECS: dict[str, Codec] = {
    "pygame.rect.Rect": Numbers(),
    "pygame.rect.FRect": Numbers(),
    "pygame.math.Vector2": Numbers(),
    "pygame.math.Vector3": Numbers(),
    "pygame.surface.Surface": Picture(),
    "pygame.mask.Mask": Shape(),
    "pygame.time.Clock": Pace(),
}
"""The codec of each type by its name, so that pygame itself is not imported."""
