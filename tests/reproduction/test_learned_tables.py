"""Tables of learned proxies and rankings, counted by hand, and what they are made from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

pytest.importorskip("pyarrow", reason="pip install 'safemargin[parquet]'")
sys.path.insert(0, str(ROOT / "reproduction"))

import learned_tables
from learned import Stored, part_widths

from safemargin.margins.learned.crossfit import Lessons


class Kept:
    """A stored study with nothing but what stands beside it."""

    def __init__(self, **found: Any) -> None:
        self._found = found

    def beside(self, name: str, *needed: str) -> Any:
        return self._found.get(name.partition(".")[0].replace("-", "_"))


def cells(table: str, row: int) -> list[str]:
    return table.splitlines()[2 + row].strip("| ").split(" | ")


def test_failing_parts_have_their_exact_limits() -> None:
    row = {
        "by_value": {"1": [0, 10], "2": [0, 0], "4": [1, 1], "8": [0, 0], "16": [0, 0],
                     "32": [5, 50]},
        "by_fifth": [[0, 30], [0, 0], [0, 0], [0, 0], [6, 31]],
    }  # fmt: skip
    kept: Any = Kept(learned={"tolerances": [0.5], "results": {"learned, margin": [row]}})
    found = cells(learned_tables.failing_parts({"pong-apex": kept}), 0)
    assert found[:5] == ["pong-apex", "0.5", "0 of 10 (0.0%)", "–", "1 of 1 (2.5%)"]
    assert found[7] == "5 of 50 (3.3%)"  # the interval of 5 of 50 is 3.3 % to 21.8 %
    assert len(found) == 13


def test_rankings_are_compared_in_the_games_that_both_played() -> None:
    def one(strategy: str, game: int, reward: float) -> dict[str, Any]:
        return {"strategy": strategy, "game": game, "decisions": 100, "deaths": 0,
                "reward": reward, "looked_at": 5, "overruled": 1}  # fmt: skip

    played = [one("nobody", 0, 1), one("nobody", 1, 2), one("nobody", 2, 9)]
    played += [one("stakes", 0, 2), one("stakes", 1, 4)]
    kept: Any = Kept(ranked_weaker={"played": played})
    found = cells(learned_tables.ranked({"pong-a3c": kept}), 1)
    assert found[:6] == ["pong-a3c, weaker", "learned stakes", "2", "5.0%", "1.00%", "30.0"]
    reach = 12.706 * 5  # t of two games; 10 and 20 more in 1,000 decisions
    assert found[6] == f"+15.00 ({15 - reach:+.2f} … {15 + reach:+.2f})"
    assert found[8:] == ["–", "–"]  # a game of Pong that ends says nothing


def test_a_weaker_agent_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from weaker import weaken

    from safemargin.policies.zoo import zoo_path

    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        weaken(zoo_path("cartpole"), tmp_path / name, 0.3, seed)
    written = {name: (tmp_path / name).read_bytes() for name in ("one", "same", "other")}
    assert written["one"] == written["same"] != written["other"]
    before, after = onnx.load(zoo_path("cartpole")), onnx.load(tmp_path / "one")
    assert [len(each.raw_data) for each in before.graph.initializer] == [
        len(each.raw_data) for each in after.graph.initializer
    ]


def test_a_part_of_the_lessons_keeps_the_studys_own_moments() -> None:
    lessons = Lessons(
        np.arange(40, dtype=np.float32).reshape(10, 4),
        np.zeros((10, 2)),
        np.array([0, 1, 2, 3, -1, -1, -1, -1, -1, -1]),
        np.array([[4, 0], [9, 1]]),
    )
    stored = Stored(lessons, np.arange(10) < 2, np.zeros(10), (1, 2))
    some = stored.part(np.array([1, 2]), labels=0.5, draw=0)
    assert some.lessons.inputs.shape == (7, 2)
    assert some.lessons.inputs[0].tolist() == [1, 2]
    assert (some.lessons.labels.sum(), some.natural.sum()) == (3, 2)
    assert stored.part(np.arange(4), labels=0, draw=0).lessons.labels.sum() == 0
    # log-probabilities of 6 actions; 4 summaries now, twice before, and their mean and extremes
    assert part_widths("pong-a3c", 1566) == {"scores": 6, "history": 24, "hidden": 3 * 512}
