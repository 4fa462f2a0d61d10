"""Pieces that are there at the same time are written together, and none of them is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from safemargin.engines import Piece
from safemargin.study.passes import run_games


class Failing:
    """An engine that fails with three pieces done, of which two came together."""

    def run(self, tasks: object) -> Iterator[Piece]:
        yield Piece([], 1.0)
        yield Piece([], 2.0, followed=True)
        yield Piece([], 3.0, followed=True)
        raise RuntimeError("the third game")


def test_pieces_before_an_error_come_first() -> None:
    games = run_games(Failing(), [])  # type: ignore[arg-type]
    assert [seconds for _, seconds in next(games)] == [1.0]
    assert [seconds for _, seconds in next(games)] == [2.0, 3.0]
    with pytest.raises(RuntimeError, match="the third game"):
        next(games)
