"""Oversight by a ranking: what people see, beside lot and regret itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.small_policies import write_careful_driver

import safemargin as sm
from safemargin.cli import main
from safemargin.core.records import EpisodeKey
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.monitor.ranking import calls, looks, rank_oversight, reviewed_well


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A careful driver on a road where it is wrong if the risk is high; a ranking learned."""
    folder = tmp_path_factory.mktemp("ranked")
    driver = write_careful_driver(folder / "driver.onnx")
    settings = sm.Settings(gamma=0.5, n_values=(1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("safemargin.margins.learned.models.MEMBERS", 1)
        world = f"{WORLDS}:make_wrong_road"
        with sm.Study.create(folder / "study", world, str(driver), settings) as study:
            study.collect(natural=100, spread=0, workers=1)
            assert study.learn(target="regret", workers=1).recipe is not None
    return folder / "study"


def test_a_learned_ranking_sees_more_regret_than_lot(wrong: Path) -> None:
    with sm.Study.open(wrong) as study:
        found = rank_oversight(study, "regret", budget=0.1, rate=10, agents=3)
    learned, lot, oracle = found.rows
    assert [row.ranking for row in found.rows] == ["learned-regret", "lot", "regret itself"]
    assert learned.regret is not None
    assert lot.regret is not None
    assert oracle.regret is not None
    assert oracle.regret.captured >= learned.regret.captured > 0.7 * oracle.regret.captured
    assert learned.regret.captured > 2 * lot.regret.captured
    for row in (learned, lot):
        assert row.looked == pytest.approx(0.1, abs=0.01)
        assert row.calls is not None
        assert row.calls_per_hour == pytest.approx(row.calls / found.decisions * 36_000 * 3)
    assert oracle.looked is None
    # A risky road is risky all along, so what the ranking puts first are whole episodes.
    assert learned.mean_length is not None
    assert lot.mean_length is not None
    assert learned.mean_length > 3 * lot.mean_length
    assert found.fail == ""  # all episodes of this agent are alike
    assert any("has seen one moment of each" in note for note in found.notes)
    json.dumps(found.to_dict())


def test_every_ranking_by_name(wrong: Path) -> None:
    with sm.Study.open(wrong) as study:
        for by in ("proxy", "prob_range", "margin", "learned-regret"):
            found = rank_oversight(study, by, budget=0.05, confidence=0.8)
            assert found.rows[0].looked == pytest.approx(0.05, abs=0.01)
        assert any("at a tolerance of" in note for note in
                   rank_oversight(study, "margin", confidence=0.8).notes)  # fmt: skip
        with pytest.raises(StudyIncomplete, match="learned no ranking by stakes; run .*--target s"):
            rank_oversight(study, "stakes")
        with pytest.raises(InvalidInput, match="nothing called 'regrets' to rank by; did you mean"):
            rank_oversight(study, "regrets")
        with pytest.raises(InvalidInput, match="fatigue is a number of calls an hour above 0"):
            rank_oversight(study, "proxy", fatigue=0)
        with pytest.raises(
            InvalidInput, match=r"the budget must be like 0.05 .*; 2 calls an hour are 2/hour"
        ):
            rank_oversight(study, "proxy", budget=2)


def test_looks_are_the_highest_values_and_lot_among_equals() -> None:
    keys = [EpisodeKey("natural", index) for index in range(2)]
    along = {keys[0]: np.arange(10.0), keys[1]: np.arange(10.0, 20.0)}
    found = looks(along, 0.25)
    assert found[keys[0]].sum() == 0
    assert np.flatnonzero(found[keys[1]]).tolist() == [5, 6, 7, 8, 9]
    equal = looks({keys[0]: np.zeros(20_000)}, 0.25)[keys[0]]
    assert equal.mean() == pytest.approx(0.25, abs=0.01)
    assert looks({keys[0]: np.zeros(9)}, 1.0)[keys[0]].all()


def test_people_tire() -> None:
    assert reviewed_well(1e6, None) == 1
    assert reviewed_well(20, 20) == 0.5
    assert reviewed_well(0, 20) == 1


def at_the_end(episode: sm.Episode) -> bool:
    return True


def test_the_command(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = f"{Path(__file__).resolve()}:at_the_end"
    command = ["simulate-oversight", str(wrong), "--by", "proxy", "--fail", event]
    assert main([*command, "--fatigue", "30", "--agents", "12"]) == 0
    out = capsys.readouterr().out
    assert "regret itself" in out
    assert f"failures: {event} (as you named it)" in out
    assert "calls an hour, of" in out
    assert "of them well, and catches" in out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget"] == 0.05
    for more, text in (
        (["--tolerance", "1"], "one --tolerance may be given, and only for --by margin"),
        (["-o", "x.png"], "--by ranks decisions; leave out --output"),
        (["--fail", "return<-1e9"], "'return<-1e9' never happens"),
    ):
        assert main([*command, *more]) == 2
        assert text in capsys.readouterr().err
    assert main(["simulate-oversight", str(wrong), "--fatigue", "3"]) == 2
    assert "add --by margin" in capsys.readouterr().err


def test_without_regret_there_is_no_share_of_it(tmp_path: Path) -> None:
    settings: Any = {"n_values": (2,), "trials": 4, "gamma": 0.5}
    with sm.Study.create(
        tmp_path, f"{WORLDS}:make_branching", f"{WORLDS}:always_first", settings, scores="logits"
    ) as study:
        with pytest.raises(StudyIncomplete, match="holds no episodes to look back on yet"):
            rank_oversight(study, "proxy")
        study.collect(5, 0, workers=1)
        found = rank_oversight(study, "proxy")
    assert [row.regret for row in found.rows] == [None, None]
    assert any("no share of regret: regret and stakes compare" in note for note in found.notes)


def test_calls_are_the_highest_values_and_near_ones_are_one() -> None:
    keys = [EpisodeKey("natural", index) for index in range(2)]
    along = {keys[0]: np.zeros(30), keys[1]: np.zeros(20)}
    along[keys[0]][[4, 12, 20]] = 9, 8, 6
    along[keys[0]][8] = 5  # nearer than five decisions to both 4 and 12: one call
    along[keys[1]][[0, 19, 10]] = 7, 4, 3  # a fifth call would begin at 10
    assert np.flatnonzero(calls(along, 1, 5)[keys[0]]).tolist() == [4, 5, 6, 7, 8]
    two = calls(along, 2, 5)  # the third call begins before 8 joins the first two
    assert np.flatnonzero(two[keys[0]]).tolist() == [*range(4, 9), *range(12, 17)]
    assert not two[keys[1]].any()
    four = calls(along, 4, 5)
    assert np.flatnonzero(four[keys[0]]).tolist() == [*range(4, 17), *range(20, 25)]
    assert np.flatnonzero(four[keys[1]]).tolist() == [*range(5), 19]


def test_a_budget_of_calls_an_hour_is_kept(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sm.Study.open(wrong) as study:
        found = rank_oversight(study, "regret", budget="60/hour", rate=1, agents=2)
        ranked, lot, oracle = found.rows
        for row in (ranked, lot):
            assert row.calls_per_hour is not None
            assert 48 < row.calls_per_hour <= 60
        assert ranked.regret is not None
        assert oracle.regret is not None
        assert oracle.regret.share == ranked.regret.share == ranked.looked
        with pytest.raises(InvalidInput, match=r"1/hour cannot be judged by this study: its epi"):
            rank_oversight(study, "regret", budget="1/hour", agents=12)
        for bad, text in (
            ("0", "must be above 0, got 0: nobody"),
            ("20/day", "or 20/hour .*, got"),
        ):
            with pytest.raises(InvalidInput, match=text):
                rank_oversight(study, "regret", budget=bad)
    command = ["simulate-oversight", str(wrong), "--budget", "60/hour", "--rate", "1"]
    assert main([*command, "--by", "regret"]) == 0
    assert "Looking at 60 calls an hour, of 3 s or more" in capsys.readouterr().out
    assert main([*command, "--by", "proxy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget"] == "60/hour"
