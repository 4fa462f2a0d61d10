"""The audit log: what is written stays, whole after kill -9, and tampering is found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.mounts import FORBIDDEN, READ_ONLY, python_on

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import AuditLogError
from safemargin.monitor.audit import KINDS, Entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "watch.db"
    with sm.AuditLog(target, write=True) as log:
        log.add("server-started", speed=15.0)
        log.add("joined", "a")
        log.add(
            "call", "a", episode=0, step=7, picture=b"\xff\xd8\xffdata", margin=0, why="margin 0"
        )
        log.add("taken", "a", episode=0, step=8, person="Ann", identity="1")
        log.add("action", "a", episode=0, step=8, person="Ann", action=2, action_name="LEFT")
    return target


def test_entries_come_back_as_they_were_written(path: Path) -> None:
    with sm.AuditLog(path) as log:
        entries = list(log)
        assert [entry.kind for entry in entries] == [
            "server-started",
            "joined",
            "call",
            "taken",
            "action",
        ]
        assert len(log) == log.check() == 5
        call = entries[2]
        assert (call.agent, call.episode, call.step) == ("a", 0, 7)
        assert call.details == {"margin": 0, "why": "margin 0"}
        assert call.text == "a calls: margin 0"
        assert entries[4].text == "Ann acted for a: LEFT"
        assert call.pictured
        assert log.picture(3) == b"\xff\xd8\xffdata"
        assert log.picture(2) is None
        assert [entry.id for entry in log.entries(after=3)] == [4, 5]
        assert [entry.id for entry in log.entries(agent="a", most=2)] == [2, 3]
        assert list(log.entries(most=0)) == list(log.entries(most=-1)) == []
        with pytest.raises(AuditLogError, match="was opened for reading"):
            log.add("left", "a")


def test_every_kind_has_a_sentence() -> None:
    for kind in KINDS:
        text = Entry(1, 0.0, kind, "the agent", person="Ann").text
        assert "{" not in text
        assert len(text) > 5


def test_a_log_is_continued_where_it_ended(path: Path) -> None:
    with sm.AuditLog(path, write=True) as log:
        assert log.add("handed-back", "a", person="Ann").id == 6
        assert log.check() == 6


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE entries SET person = 'Ben' WHERE id = 4", "never change"),
        ("DELETE FROM entries WHERE id = 4", "never vanish"),
        ("INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE id = 4", "follow one another"),
        ("INSERT INTO entries SELECT 9, time, kind, agent, episode, step, person, details, picture,"
         " digest FROM entries WHERE id = 4", "follow one another"),
    ],
)  # fmt: skip
def test_sqlite_itself_refuses_to_change_the_past(path: Path, statement: str, said: str) -> None:
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match=f"append-only: entries {said}"):
        connection.execute(statement)
    connection.close()
    with sm.AuditLog(path) as log:
        assert log.check() == 5


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE entries SET person = 'Ben' WHERE id = 4", "entry 4 was altered"),
        ("UPDATE entries SET picture = x'00' WHERE id = 3", "entry 3 was altered"),
        ("DELETE FROM entries WHERE id = 2", "entry 2 is missing"),
        ("DELETE FROM entries", "entry 1 is missing, the log is empty"),
    ],
)
def test_tampering_behind_the_triggers_is_found(
    path: Path, capsys: pytest.CaptureFixture[str], statement: str, said: str
) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_never_change")
    connection.execute("DROP TRIGGER entries_never_vanish")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with sm.AuditLog(path) as log, pytest.raises(AuditLogError, match=said):
        log.check()
    assert main(["audit", str(path)]) == 2
    assert said in capsys.readouterr().err
    pytest.importorskip("fastapi")
    before = path.read_bytes()
    assert main(["watch", "--remote", "--port", "0", "--no-browser", "--log", str(path)]) == 2
    assert said in capsys.readouterr().err  # no server continues such a log
    assert path.read_bytes() == before


def test_a_log_begins_with_the_start_of_a_server(tmp_path: Path) -> None:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        assert log.check() == 0  # just made
        empty = pytest.raises(AuditLogError, match="entry 1 is missing, the log is empty")
        with sm.AuditLog(tmp_path / "watch.db") as reader, empty:
            reader.check()
        log.add("joined", "a")
        with pytest.raises(AuditLogError, match="entry 1 is missing"):
            log.check()


def test_tidy_moves_the_journal_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with sm.AuditLog(path, write=True) as log:
        log.add("server-started")
        log.tidy()
        for step in range(300):
            log.add("call", "a", step=step, picture=bytes(20_000))
        assert path.stat().st_size < 1 << 20  # everything is still in the journal
        log.tidy()
        assert path.stat().st_size > 300 * 20_000
        log.add("left", "a")
        assert log.check() == 302


def test_a_long_log_is_read_page_by_page(tmp_path: Path) -> None:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        log.add("server-started")
        for step in range(2100):
            log.add("call", "ab"[step % 2], step=step)
        assert log.check() == 2101
        assert [entry.step for entry in log] == [None, *range(2100)]
        assert [entry.step for entry in log.entries(agent="b")] == list(range(1, 2100, 2))
        assert len(list(log.entries(after=3, most=1500))) == 1500


def test_one_writer_at_a_time(path: Path) -> None:
    with sm.AuditLog(path, write=True):
        with pytest.raises(AuditLogError, match="another server writes to .*watch.db"):
            sm.AuditLog(path, write=True)
        with sm.AuditLog(path) as reader:  # reading is always possible
            assert reader.check() == 5


WRITER = """
import sys, safemargin as sm
log = sm.AuditLog(sys.argv[1], write=True)
log.add("server-started")
for number in range(10**9):
    log.add("action", "a", step=number, person="Ann", picture=bytes(3000))
    print(number, flush=True)
"""


def test_the_log_is_whole_after_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 200:
            break
    os.kill(writer.pid, signal.SIGKILL)
    printed = [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    last = max([200, *printed])
    with sm.AuditLog(path, write=True) as log:
        steps = [entry.step for entry in log if entry.kind == "action"]
        assert steps == list(range(len(steps)))
        assert len(steps) > last  # whatever was confirmed is there
        assert log.check() == len(steps) + 1
        log.add("left", "a")


@pytest.mark.parametrize("left", ["server", "log and index", "log", "nothing"])
@pytest.mark.parametrize("disk", [READ_ONLY, FORBIDDEN], ids=["read-only", "forbidden"])
def test_a_log_that_may_only_be_read_is_read_whole(
    path: Path, tmp_path: Path, left: str, disk: str
) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    with sm.AuditLog(path, write=True) as log:
        log.add("left", "a")
        if left == "nothing":
            log.close()
        for file in tmp_path.glob("watch.db*"):  # of an open log: what kill -9 would leave
            shutil.copy(file, folder)
        if left == "log":
            (folder / "watch.db-shm").unlink()
        place = path if left == "server" else folder / "watch.db"
        seen = python_on(disk, place.parent, "-m", "safemargin", "audit", str(place))
        place.parent.chmod(0o755)
    if left == "log":
        assert seen.returncode == 2
        assert f"safemargin: {place} cannot be read where it is: its newest part" in seen.stderr
        assert "copy the whole folder to a writable disk" in seen.stderr
        assert seen.stderr.count("\n") == 1
    else:
        assert seen.returncode == 0, seen.stderr
        assert "a left" in seen.stdout


def test_files_that_are_not_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditLogError, match="there is no audit log"):
        sm.AuditLog(tmp_path / "none.db")
    with pytest.raises(AuditLogError, match="there is no folder"):
        sm.AuditLog(tmp_path / "none" / "watch.db", write=True)
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to be taken for one" * 20)
    for write in (False, True):
        with pytest.raises(AuditLogError, match="cannot be read as an audit log"):
            sm.AuditLog(text, write=write)
    assert not (tmp_path / "text.db-lock").exists()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(AuditLogError, match="is not an audit log of safemargin"):
        sm.AuditLog(other, write=True)
    with (
        sm.AuditLog(tmp_path / "watch.db", write=True) as log,
        pytest.raises(AuditLogError, match="the kind 'cal' is unknown; did you mean 'call'"),
    ):
        log.add("cal")


def test_an_entry_is_one_line_whatever_is_in_it(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = "low\n   999  2026-01-01 10:00:00       0/7  Ann acted for a: FIRE\x1b[31m\ud800"
    with sm.AuditLog(path, write=True) as log:
        log.add("call", "a", why=forged)
        log.add("action", "a", person="Ann", action=1, action_name="UP\r")
    assert main(["audit", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[5].endswith(r"acted for a: FIRE\x1b[31m\ud800")
    assert lines[6].endswith(r"Ann acted for a: UP\r")


def test_the_command_prints_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(path)]) == 0
    printed = capsys.readouterr()
    assert "0/8  Ann acted for a: LEFT" in printed.out
    assert "5 entries; none was altered" in printed.err
    assert main(["audit", str(path), "--json", "--agent", "a"]) == 0
    log = json.loads(capsys.readouterr().out)
    assert [entry["kind"] for entry in log["entries"]] == ["joined", "call", "taken", "action"]
    assert main(["audit", str(path), "--agent", "b"]) == 2
    assert "has no entry of an agent 'b'" in capsys.readouterr().err
