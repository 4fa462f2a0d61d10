"""Learning where the agent is wrong: from stored returns to a ranking, and its file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_policies import write_careful_driver
from helpers.worlds import make_risky_road, make_wrong_road

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins import Ranking
from safemargin.policies.value_signals import value_signals
from safemargin.study.learning_rankings import ranking_of
from safemargin.study.lessons import LABELS
from safemargin.study.tuples import read_tuples

SETTINGS = sm.Settings(gamma=0.5, n_values=(1,))
ON_ONE_CORE: dict[str, Any] = {"workers": 1}


@pytest.fixture(scope="module", autouse=True)
def small_ensembles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("safemargin.margins.learned.models.MEMBERS", 1)
        yield


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranked")
    driver = write_careful_driver(folder / "driver.onnx")
    with sm.Study.create(folder / "study", make_wrong_road, str(driver), SETTINGS) as study:
        study.collect(natural=100, spread=10, **ON_ONE_CORE)
        found = study.learn(target="regret", **ON_ONE_CORE)
    assert found.recipe is not None
    return folder / "study"


@pytest.fixture
def copy(ranked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ranked, tmp_path / "study"))


def test_a_ranking_finds_where_the_agent_is_wrong(ranked: Path) -> None:
    """The paper's proxy is blind to the risk; the model sees it."""
    with sm.Study.open(ranked) as study:
        found = study.store.meta("learned-regret")["found"]
        blind, seen, best = (
            found["captured"][name][2]["captured"]
            for name in ("log_prob_range", "learned-regret", "regret itself")
        )
        assert seen > 0.8 * best > 2 * blind
        assert found["captured"]["lot"][1]["captured"] == pytest.approx(0.05)
        assert study.proxies == [name for name in study.proxies if "regret" not in name]
        with pytest.raises(InvalidInput, match="learned-regret puts decisions in order"):
            study.fit(proxy="learned-regret")
        tuples = read_tuples(study.store, study.settings, "learned-regret")
        assert len(tuples) == 110
        assert len(list(study.store.proxy_traces("learned-regret"))) == 110
        study.fit()  # margins are what they were


def test_stakes_are_learned_beside_it_and_more_moments_change_nothing(copy: Path) -> None:
    with sm.Study.open(copy, env=make_wrong_road) as study:
        before = read_tuples(study.store, study.settings, "learned-regret").proxies
        found = study.learn(target="stakes", traces=False, **ON_ONE_CORE)
        assert found.recipe is not None
        assert study.store.meta("learned-regret") is not None
        with pytest.raises(StudyIncomplete, match="learned stakes proxy.*--target stakes"):
            list(study.store.proxy_traces("learned-stakes"))
        study.collect(natural=102, spread=10, **ON_ONE_CORE)
        assert len(study.tuples()) == 112
        after = read_tuples(study.store, study.settings, "learned-regret").proxies
        assert np.array_equal(before, after)


def test_labels_teach_a_ranking_too(copy: Path) -> None:
    with sm.Study.open(copy, env=make_wrong_road) as study:
        found = study.learn(target="regret", labels=20, traces=False, **ON_ONE_CORE)
        assert (found.moments, found.labels, found.natural) == (110, 20, 100)


def test_the_file_says_whose_it_is_and_gives_thresholds(ranked: Path, tmp_path: Path) -> None:
    with sm.Study.open(ranked) as study:
        ranking = ranking_of(study.store, "regret")
        with pytest.raises(InvalidInput, match="no learned-stakes proxy; run .* --target stakes"):
            ranking_of(study.store, "stakes")
    ranking.save(tmp_path / "regret.json")
    loaded = Ranking.load(tmp_path / "regret.json")
    assert loaded.probe.identity == ranking.probe.identity
    assert loaded.about["policy"] == ranking.about["policy"]
    assert (loaded.values > loaded.threshold(0.1)).mean() == pytest.approx(0.1, abs=0.011)
    inputs = np.zeros((3, len(ranking.probe.view.mean)), np.float32)
    assert np.array_equal(loaded.probe(inputs)[0], ranking.probe(inputs)[0])
    with pytest.raises(InvalidInput, match="a share of decisions lies between 0 and 1, got 0"):
        loaded.threshold(0)
    with pytest.raises(InvalidInput, match="cannot write"):
        ranking.save(tmp_path / "nowhere" / "regret.json")


KNOWN = '{"format": "safemargin-ranking", "version": 1'


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no ranking; `safemargin learn"),
        (KNOWN.replace("1", "9") + "}", "has version 9, this safemargin reads 1"),
        (KNOWN + "}", "is damaged: 'target'"),
        (
            KNOWN + ', "target": "luck"}',
            "is damaged: a ranking is learned of regret or stakes, not of 'luck'",
        ),
        (
            KNOWN + ', "target": "regret", "values": [2.0, 1.0]}',
            "is damaged: its values are not finite, or not in order",
        ),
        (
            KNOWN + ', "target": "regret", "values": ["a"]}',
            "is damaged: its values are no list of numbers",
        ),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "regret.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=text):
        Ranking.load(path)
    with pytest.raises(InvalidInput, match="cannot read"):
        Ranking.load(tmp_path / "missing.json")


def test_where_the_agent_is_never_wrong_there_is_nothing_to_learn(tmp_path: Path) -> None:
    driver = write_careful_driver(tmp_path / "driver.onnx")
    with sm.Study.create(tmp_path / "s", make_risky_road, str(driver), SETTINGS) as study:
        study.collect(natural=50, spread=0, **ON_ONE_CORE)
        with pytest.raises(StudyIncomplete, match="there is no regret at any of the 50 natural"):
            study.learn(target="regret", labels=5, **ON_ONE_CORE)
        assert not (tmp_path / "s" / LABELS).exists()  # refused before anything is collected
        with pytest.raises(InvalidInput, match="learned of regret or stakes, not of 'regrets'"):
            study.learn(target="regrets", **ON_ONE_CORE)
        with pytest.raises(InvalidInput, match="labels must be at least 0"):
            study.learn(target="stakes", labels=-1, **ON_ONE_CORE)


def test_the_command(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", str(copy), "-o", "x.json"]) == 2
    assert "with --target regret or stakes" in capsys.readouterr().err
    with sm.Study.open(copy, env=make_wrong_road) as study:
        found = json.loads(json.dumps(study.store.meta("learned-regret")["found"]))
    assert found["target"] == "regret"


def test_signals_of_the_policys_own_value_by_hand() -> None:
    scores = np.array([[0.0, 2.0], [1.0, 3.0], [0.0, 1.0]], np.float32)
    rewards = np.array([1.0, 0.0, 5.0])
    found = value_signals("q", scores, None, rewards, 0.5)
    assert found["td_residual"].tolist() == [0.0, abs(1 + 0.5 * 3 - 2), abs(0.5 * 1 - 3)]
    assert "policy_value" not in found
    assert value_signals("logits", scores, None, rewards, 0.5) == {}
    even = np.zeros((3, 2), np.float32)
    found = value_signals("logits", even, np.array([2.0, 3.0, 1.0]), rewards, 0.5)
    assert found["td_residual"].tolist() == [0.0, 0.5, 2.5]
    assert found["policy_value"].tolist() == [0.0, 0.0, 0.5 * 2.5]
