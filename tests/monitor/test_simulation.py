"""Simulated oversight: costs and catches by hand, a study's episodes, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.margins import margins, scores
from helpers.paths import WORLDS
from helpers.studies import damaged, select

import safemargin as sm
from safemargin.cli import main
from safemargin.core.budget import Budget
from safemargin.errors import InvalidInput
from safemargin.monitor.attention import PastEpisode, attention_row, calling, within_budget
from safemargin.monitor.attention_plot import attention_figure


def test_calling_is_what_a_monitor_does() -> None:
    rng = np.random.default_rng(0)
    proxies = np.abs(np.cumsum(rng.normal(0, 0.7, 400))) % 4
    for call_at, release_at in ((1, 2), (2, 4), (2, 2), (4, 4)):
        watch = sm.Monitor(margins(), tolerance=1.0, call_at=call_at, release_at=release_at)
        said = [watch.step(scores(proxy)) for proxy in proxies]
        found = calling(np.array([each.margin for each in said]), call_at, release_at)
        assert found.tolist() == [each.call for each in said]
    assert calling(np.array([2, 2]), 1, 4).tolist() == [False, False]


def past_episode(found: list[int], **changes: Any) -> PastEpisode:
    values: dict[str, Any] = {
        "fingerprint": "",
        "failures": np.array([], dtype=np.int64),
        "moment": None,
        "losses": None,
    }
    return PastEpisode(margins=[np.array(found)], **{**values, **changes})


def test_a_row_by_hand() -> None:
    """Two episodes of six decisions; calls below 1 end at 2."""
    episodes = [
        past_episode([4, 0, 1, 2, 4, 4], failures=np.array([0, 2, 5]), moment=1,
                     losses=np.array([3.0, 9.0])),
        past_episode([4, 4, 4, 4, 0, 0], failures=np.array([5]), moment=0,
                     losses=np.array([1.0, 9.0])),
    ]  # fmt: skip
    row = attention_row(episodes, 0, 0.5, (1, 2), 0, 2, 3600.0, 3)
    assert (row.call_at, row.release_at) == (1, 2)
    assert row.called == 4 / 12  # decisions 1, 2 and 4, 5
    assert row.calls == 2
    assert row.calls_per_hour == 2 / 12 * 3600 * 3
    assert row.mean_length == 2
    assert row.failures is not None
    assert (row.failures.share.count, row.failures.share.tested) == (2, 4)
    assert row.failures.by_chance == 5 / 12  # decisions 1, 2, 3 and 4, 5
    assert row.lead == 1  # the failures at 2 and 5, in calls that began at 1 and 4
    assert row.measured_loss == 3 / 4
    silent = attention_row([past_episode([4, 4])], 0, 0.5, (1, 2), 0, 2, 3600.0, 1)
    assert silent.failures is silent.lead is silent.measured_loss is None
    assert silent.mean_length is None
    assert within_budget([row], 0.5, Budget(0.3, "share")) is None
    assert within_budget([row], 0.5, Budget(0.4, "share")) is row
    assert within_budget([row], 0.5, Budget(1_799, "hour")) is None
    assert within_budget([row], 0.5, Budget(1_800, "hour")) is row
    assert within_budget([row], 0.5, None) is None


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hindsight") / "study"
    settings = {"n_values": (1, 2, 4), "trials": 12, "opening": 6}
    with sm.Study.create(
        path, f"{WORLDS}:make_branching", f"{WORLDS}:always_first", settings, scores="logits"
    ) as made:
        made.collect(30, 15, workers=1)
    return path


def test_a_study_in_hindsight(study: Path) -> None:
    with sm.Study.open(study) as opened:
        found = sm.simulate_oversight(
            opened, budget=0.5, tolerances=[0.2, 5.0], confidence=0.8, rate=10, agents=2,
            fail="terminated",
        )  # fmt: skip
        monitored = opened.fit(0.8)
    assert found.held_out
    assert monitored.natural_proxies is not None
    assert monitored.natural_proxies.count == found.episodes
    assert found.decisions == 45 * 40 - sum_of_openings(study)
    assert [(row.tolerance, row.call_at) for row in found.rows] == [
        (0.2, 1), (0.2, 2), (0.2, 4), (5.0, 1), (5.0, 2), (5.0, 4),
    ]  # fmt: skip
    strict, lenient = found.rows[:3], found.rows[3:]
    for few, many in zip(lenient, strict, strict=True):
        assert few.called <= many.called
    for row in found.rows:
        assert row.failures is not None
        assert row.failures.share.tested == found.episodes
        assert row.calls_per_hour == pytest.approx(row.calls / found.decisions * 36_000 * 2)
    for rows, choice in zip((strict, lenient), found.choices, strict=True):
        allowed = [row for row in rows if row.called <= 0.5]
        assert choice == (allowed[-1] if allowed else None)
    assert any(found.choices)
    assert json.loads(json.dumps(found.to_dict()))["within"] == 8


def test_tolerances_may_be_an_array_but_not_none_at_all(study: Path) -> None:
    with sm.Study.open(study) as opened:
        found = [
            sm.simulate_oversight(opened, tolerances=values, confidence=0.8)
            for values in ([0.5, 2.0], np.array([0.5, 2.0], dtype=np.float32))
        ]
        assert json.dumps(found[0].to_dict()) == json.dumps(found[1].to_dict())
        with pytest.raises(InvalidInput, match="tolerances is empty; give one or more"):
            sm.simulate_oversight(opened, tolerances=[], confidence=0.8)


def sum_of_openings(study: Path) -> int:
    with sm.Study.open(study) as opened:
        return sum(row[0] for row in select(opened.path, "SELECT opening FROM episodes"))


def test_without_enough_moments_it_says_that_it_flatters(tmp_path: Path) -> None:
    with sm.Study.create(
        tmp_path / "few", f"{WORLDS}:make_chain", f"{WORLDS}:always_first",
        {"n_values": (1,), "trials": 2}, scores="logits",
    ) as made:  # fmt: skip
        made.collect(10, 0, workers=1)
        found = sm.simulate_oversight(made, tolerances=[1.0], confidence=0.5)
    assert not found.held_out
    assert any("which flatters them" in note for note in found.notes)


def test_the_command(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "calls.png"
    command = ["simulate-oversight", str(study), "--confidence", "0.8", "--tolerance", "0.2,5"]
    assert main([*command, "--budget", "1", "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "Calling at tolerance 0.2 (confidence 0.8, log_prob_range)" in out
    assert "budget 1, tolerance 5: call_at=4" in out
    assert "Every episode was judged by margins fitted without it." in out
    assert picture.stat().st_size > 10_000
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 6
    strict = [*command[:-1], "0", "--budget", "0.0001"]
    assert main(strict) == 1
    assert "no threshold keeps within 0.0001 of all decisions" in capsys.readouterr().err
    assert main([*command, "--budget", "1/hour"]) == 1
    assert "no threshold keeps within 1 call an hour" in capsys.readouterr().err
    assert main([*command, "--budget", "99999/hour", "-o", str(picture)]) == 0
    assert "budget 99999/hour, tolerance 5: call_at=4" in capsys.readouterr().out
    assert main([*command, "--budget", "5"]) == 2
    assert "got '5', which is above 1; 5 calls an hour are 5/hour" in capsys.readouterr().err


def test_an_unfinished_study_says_so(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = damaged(
        study, tmp_path / "begun", "DELETE FROM estimates WHERE n = 1 AND phase = 'spread'"
    )
    command = ["simulate-oversight", str(begun), "--confidence", "0.8", "--tolerance", "0.2"]
    assert main(command) == 0
    assert "note: the study is not finished (" in capsys.readouterr().err


def test_tables_are_printed_without_loading_matplotlib() -> None:
    code = "import sys, safemargin.cli.show_attention; print('matplotlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_a_picture_without_failures(study: Path) -> None:
    with sm.Study.open(study) as opened:
        found = sm.simulate_oversight(opened, tolerances=[0.2], confidence=0.8)
    rows = tuple(replace(row, failures=None) for row in found.rows)
    figure = attention_figure(replace(found, rows=rows))
    assert figure.axes[0].get_ylabel() == "share of measured loss caught"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"within": 0}, "within must be at least 1 decision, got 0"),
        ({"rate": 0}, "the rate must be above 0 decisions a second, got 0"),
        ({"agents": 0}, "agents must be at least 1, got 0"),
        ({"tolerances": [-1.0]}, "the tolerance must be at least 0, got -1"),
    ],
)
def test_invalid_options_are_refused(study: Path, options: Any, text: str) -> None:
    with sm.Study.open(study) as opened, pytest.raises(InvalidInput, match=text):
        sm.simulate_oversight(opened, confidence=0.8, **options)


def test_the_lives_of_a_game_are_one_episode_to_drift(tmp_path: Path) -> None:
    with sm.Study.create(
        tmp_path / "lives", f"{WORLDS}:make_lives", f"{WORLDS}:always_first",
        {"n_values": (1,), "trials": 2}, scores="logits",
    ) as made:  # fmt: skip
        made.collect(20, 0, workers=1)
        games = len(select(made.path, "SELECT DISTINCT phase, episode FROM episodes"))
        episodes = len(select(made.path, "SELECT 1 FROM episodes"))
        found = made.fit(0.5, method="paper").natural_proxies
    assert found is not None
    assert found.count == games < episodes
