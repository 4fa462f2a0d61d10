"""Numbers as people write them."""

from __future__ import annotations

import pytest

from safemargin.core.text import counted


@pytest.mark.parametrize(
    ("number", "plural", "text"),
    [
        (0, None, "0 estimates"),
        (1, None, "1 estimate"),
        (2, None, "2 estimates"),
        (12345, None, "12,345 estimates"),
        (1, "entries", "1 estimate"),
        (3, "entries", "3 entries"),
    ],
)
def test_one_thing_is_not_several(number: int, plural: str | None, text: str) -> None:
    assert counted(number, "estimate", plural) == text
