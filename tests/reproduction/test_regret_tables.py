"""The reproduction's tables of regret, from small studies made by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.worlds import make_branching

import safemargin as sm

pytest.importorskip("pyarrow", reason="pip install 'safemargin[parquet]'")

sys.path.insert(0, str(ROOT / "reproduction"))

import lander_tables
import regret
import tables


class Kept:
    """A stored study of which only what lies beside it is known."""

    def __init__(self, **beside: Any) -> None:
        self.found = beside

    def beside(self, name: str, *needed: str) -> Any:
        return self.found.get(name.removesuffix(".json"))


def decision(game: int, gain: float, judged: float, chosen: float | None) -> dict[str, Any]:
    return {"game": game, "step": 0, "proxy": gain, "criticality": -gain / 2, "regret": gain,
            "judged": judged, "chosen": chosen}  # fmt: skip


def test_what_is_repeatable_counts_every_decision_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three decisions without regret one was followed: it stands for all three."""
    decisions = [
        decision(0, 1.0, 0.5, 0.25),
        decision(0, 0.0, 0.0, 0.5),
        decision(1, 0.0, 0.0, None),
        decision(1, 0.0, 0.0, None),
    ]
    studies: Any = {"pong-a3c": Kept(repeatable={"decisions": decisions})}
    (row,) = regret.repeatable_regret(studies).splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["pong-a3c", "4 of 2", "25 %"]
    assert [cell.split(" ±")[0] for cell in cells[3:6]] == ["0.250", "0.125", "0.438"]
    assert cells[6] == "50 %"
    assert regret.repeatable_regret({"pong-a3c": Kept()}).count("\n") == 1  # only the heading


def test_what_rankings_capture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pilot = {"criticality": [0.0] * 20, "gain": [1.0] + [0.0] * 19, "proxy": list(range(20))}
    played = [{"strategy": "nobody", "game": game, "pilot": pilot} for game in range(2)]
    names = ("group", "criticality", "regret", "proxy", "learned-regret")
    lander = {"columns": {name: [3.0, 0.0, 1.0] for name in names}}
    (tmp_path / "lander.json").write_text(json.dumps(lander))
    monkeypatch.setattr(regret, "LANDER", tmp_path / "lander.json")
    studies: Any = {"beamrider-apex": Kept(supervision={"played": played})}
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in regret.captured_regret(studies).splitlines()[2:]
    ]
    assert {row[0] for row in rows} == {"beamrider-apex", "LunarLander PPO"}
    of = {(row[0], row[2]): row[4] for row in rows}
    assert of["beamrider-apex", "regret itself"].startswith("1.00")
    assert of["beamrider-apex", "the paper's proxy"].startswith("0.00")
    assert of["beamrider-apex", "chance"].startswith("0.05 (0.05 … 0.05)")
    assert ("LunarLander PPO", "learned regret") in of
    assert tables.MISSING not in regret.captured_regret(studies)


def test_gathering_keeps_what_rankings_say_at_natural_moments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubtful(observations: np.ndarray) -> np.ndarray:
        """Of the poor lane and the good one, as the place has it."""
        place = observations.argmax(axis=1)
        return np.stack([np.ones(len(place)), (place % 7 == 3) * 2.0 + 0.01 * place], axis=1)

    settings = {"n_values": (1,), "gamma": 0.9}
    with sm.Study.create(
        tmp_path / "study", make_branching, doubtful, settings, scores="logits"
    ) as study:
        study.collect(12, 3, workers=1)
    regret.gather(tmp_path / "study", tmp_path / "lander.json")
    assert "12 moments" in capsys.readouterr().out
    columns = json.loads((tmp_path / "lander.json").read_text())["columns"]
    assert {"group", "criticality", "regret", "proxy", "prob_range"} <= set(columns)
    assert {len(values) for values in columns.values()} == {12}
    assert max(columns["regret"]) > 0


def test_flights_are_compared_with_the_same_games(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def flight(strategy: str, budget: float, game: int, reward: float, looks: int) -> Any:
        played = {"strategy": strategy, "budget": budget, "game": game, "decisions": 100}
        return {**played, "reward": reward, "crashed": reward < 0, "looked_at": looks,
                "overruled": 1}  # fmt: skip

    played = [
        flight("regret", 0.05, 0, 100.0, 5),
        flight("regret", 0.05, 1, 120.0, 5),
        flight("nobody", 0.0, 0, -50.0, 0),
        flight("nobody", 0.0, 1, 50.0, 0),
        flight("random", 0.05, 1, 80.0, 5),
        flight("random", 0.05, 0, 80.0, 5),
        flight("always", 1.0, 1, 200.0, 100),
    ]
    path = tmp_path / "lander_supervision.json"
    monkeypatch.setattr(lander_tables, "RESULT", path)
    assert lander_tables.flights() == {}
    path.write_text(json.dumps({"played": played}))
    rows = lander_tables.lander_supervised({}).splitlines()[2:]
    assert rows[0] == "| 0% | nobody | 2 | 0.0 | 1.0% | 0 | 1 |"
    assert [row.split(" | ")[1] for row in rows] == [
        "nobody", "chance", "learned regret", "every decision",
    ]  # fmt: skip
    chance, learned = lander_tables.lander_compared({}).splitlines()[2:]
    reach = 12.7062 * 5  # t with one degree of freedom; +20 and +40 against chance
    assert f"+30 ({30 - 2 * reach:+.0f} … {30 + 2 * reach:+.0f})" in learned
    assert chance.count(" – ") == 2
    # In game 1, which all played: 100 looks gain 150, so a look is worth 1.5 at most.
    assert lander_tables.lander_prices({}).splitlines()[2:] == [
        "| 0% | nobody | 1 | 0.0 | 50 | 50 | 50 |",
        "| 5% | chance | 1 | 5.0 | 80 | 76 | 72 |",
        "| 5% | learned regret | 1 | 5.0 | 120 | 116 | 112 |",
        "| 100% | every decision | 1 | 100.0 | 200 | 125 | 50 |",
    ]
