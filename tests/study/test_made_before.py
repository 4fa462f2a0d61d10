"""Files that an earlier version wrote are read, resumed and reproduced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.paths import DATA
from helpers.studies import TABLES, contents, damaged

import safemargin as sm

STUDY = DATA / "studies" / "pong-a3c"


def test_a_study_is_resumed_and_what_it_held_stays(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    path = tmp_path / "study"
    shutil.copytree(STUDY, path)
    before = contents(path)
    assert {table: len(rows) for table, rows in before.items()} == {
        "episodes": 5,
        "episode_proxies": 15,
        "moments": 5,
        "moment_proxies": 15,
        "estimates": 10,
    }
    with sm.Study.open(path) as study:
        study.collect(natural=4, spread=2, workers=1)
        assert study.status().moments == {"natural": 4, "spread": 2}
    after = contents(path)
    for table, rows in before.items():
        assert [row for row in after[table] if row in rows] == rows, table
    assert len(after["estimates"]) == 12


def test_the_same_numbers_are_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    path = damaged(STUDY, tmp_path / "study", *[f"DELETE FROM {table}" for table in TABLES])
    with sm.Study.open(path) as study:
        study.collect(natural=3, spread=2, workers=1)
    before, after = contents(STUDY), contents(path)
    # The scores of a network, and so the proxies, may differ in the last bits between processors.
    for table in ("moments", "estimates"):
        assert after[table] == before[table], table


def test_a_margins_file_gives_the_same_margins() -> None:
    margins = sm.Margins.load(DATA / "cartpole-margins.json")
    assert (margins.proxy, margins.method, margins.confidence) == (
        "log_prob_range",
        "calibrated",
        0.9,
    )
    found = [
        [int(margins.lookup(proxy, tolerance).margin) for proxy in (0, 0.628, 1.26, 1.88, 5.02)]
        for tolerance in (1, 5, 20, 60)
    ]
    assert found == [[4, 2, 2, 1, 1], [4, 4, 2, 2, 2], [4, 4, 2, 2, 2], [4, 4, 4, 4, 4]]
    assert margins.to_dict()["policy"]["identity"] == sm.load_policy("zoo:cartpole").identity


def test_an_audit_log_is_read_and_continued(tmp_path: Path) -> None:
    path = shutil.copy(DATA / "watch.db", tmp_path)
    with sm.AuditLog(path) as log:
        assert log.check() == 5
        assert [entry.text for entry in log.entries(after=2, most=1)] == ["a calls: margin 0"]
        assert log.picture(3) == b"\xff\xd8\xffdata"
    with sm.AuditLog(path, write=True) as log:
        assert log.add("handed-back", "a", person="Ann").id == 6
        assert log.check() == 6
