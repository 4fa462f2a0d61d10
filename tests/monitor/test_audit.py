"""The audit log: what is written stays, whole after kill -9, and tampering is found."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from helpers.mounts import FORBIDDEN, READ_ONLY, python_on
from helpers.paths import ROOT

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import AuditLogAltered, AuditLogError, InvalidInput
from safemargin.monitor.audit import KINDS, Entry, _digest
from safemargin.monitor.seals import Anchor, Sealer


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
    assert {"call", "taken", "action"} < set(KINDS)
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
         " digest, seal FROM entries WHERE id = 4", "follow one another"),
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
    assert main(["audit", str(path)]) == 1
    assert said in capsys.readouterr().err
    assert main(["audit", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["whole"], told["sealed"]) == (False, "yours")
    assert said in told["fault"]
    pytest.importorskip("fastapi")
    before = path.read_bytes()
    assert main(["watch", "--remote", "--port", "0", "--no-browser", "--log", str(path)]) == 2
    assert said in capsys.readouterr().err  # no server continues such a log
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statements", "status", "said"),
    [
        ("DELETE FROM about", 2, "does not say what it is"),
        ("DROP TABLE about; CREATE TABLE about (format)", 2, "does not say what it is"),
        ("ALTER TABLE about DROP COLUMN key", 2, "has the format"),
        ("UPDATE entries SET kind = x'fffe' WHERE id = 3", 1, "entry 3 was altered"),
        ("UPDATE entries SET picture = 'text' WHERE id = 3", 1, "entry 3 was altered"),
        ("UPDATE entries SET digest = 'text' WHERE id = 5", 1, "entry 5 was altered"),
        ("UPDATE about SET key = NULL", 1, "entry 1 is sealed, and the log no longer says with"),
    ],
)
def test_an_altered_log_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], statements: str, status: int, said: str
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name in ("change", "vanish"):
            connection.execute(f"DROP TRIGGER entries_never_{name}")
        connection.executescript(statements)
    assert main(["audit", str(path)]) == status
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1


# -- seals ---------------------------------------------------------------------------------------


def rewrite(path: Path, statement: str, *, seal: bytes | None = b"forged") -> None:
    """Change rows and compute all hashes again, as somebody would who knows the format."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for name in ("change", "vanish"):
            connection.execute(f"DROP TRIGGER entries_never_{name}")
        connection.executescript(statement)
        digest = b""
        for row in connection.execute("SELECT * FROM entries ORDER BY id").fetchall():
            digest = _digest(digest, row[:8], row[8])
            values = [digest, row[0]]
            connection.execute("UPDATE entries SET digest = ? WHERE id = ?", values)
            if len(row) > 10 and digest != row[9]:
                connection.execute("UPDATE entries SET seal = ? WHERE id = ?", [seal, row[0]])


ALTERED = "UPDATE entries SET person = 'Ben' WHERE id = 4"


@pytest.mark.parametrize("seal", [b"forged", b"", None])
def test_a_log_that_was_hashed_again_is_found_out(
    path: Path, capsys: pytest.CaptureFixture[str], seal: bytes | None
) -> None:
    rewrite(path, ALTERED, seal=seal)
    said = "entry 4 is not sealed with your key"
    with sm.AuditLog(path) as log, pytest.raises(AuditLogAltered, match=said):
        log.check()
    assert main(["audit", str(path)]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert not printed.out


def test_the_last_entries_of_a_sealed_log_cannot_be_replaced(path: Path) -> None:
    """Not even by entries with seals of their own, in another order."""
    rewrite(
        path,
        "CREATE TABLE kept AS SELECT * FROM entries WHERE id > 3;"
        "UPDATE entries SET details = '{}', seal = (SELECT seal FROM kept WHERE id = 4)"
        " WHERE id = 5; DROP TABLE kept",
    )
    with sm.AuditLog(path) as log, pytest.raises(AuditLogAltered, match="entry 5 is not sealed"):
        log.check()


def test_without_the_key_only_the_hashes_are_checked(
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    assert main(["audit", str(path)]) == 0
    assert "5 entries; the hashes fit together, but the key that seals them is not on this " in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "elsewhere").exists()  # looking makes no key
    with sm.AuditLog(path) as log:
        assert (log.check(), log.sealed) == (5, "other")
    with pytest.raises(AuditLogError, match="is sealed with a key that is not yours on this mach"):
        sm.AuditLog(path, write=True)
    rewrite(path, ALTERED)
    assert main(["audit", str(path), "--json"]) == 0  # this is what cannot be known here
    assert json.loads(capsys.readouterr().out)["sealed"] == "other"


def test_without_a_place_for_a_key_a_log_is_not_sealed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        log.add("server-started")
        assert (log.check(), log.sealed) == (1, "no")
    assert main(["audit", str(tmp_path / "watch.db")]) == 0
    assert "but no key seals them: whoever can write to the file" in capsys.readouterr().err


def test_a_log_from_before_seals_is_read_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copy(ROOT / "tests" / "data" / "watch.db", tmp_path / "watch.db")
    assert main(["audit", str(path)]) == 0
    assert "but no key seals them" in capsys.readouterr().err
    with sm.AuditLog(path, write=True) as log:
        before = log.check()
        log.add("server-stopped")
        assert (log.check(), log.sealed) == (before + 1, "no")


# -- anchors -------------------------------------------------------------------------------------


def anchored(path: Path, target: object) -> Anchor:
    """A line about the log as it is now."""
    anchor = Anchor(str(target), every=3600.0)
    with sm.AuditLog(path) as log:
        anchor.start(log)
        anchor.close()
    return anchor


def test_an_anchor_finds_what_was_cut_off_and_what_your_own_key_wrote(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "anchors"
    audit = ["audit", str(path), "--anchor", str(kept)]
    assert anchored(path, kept).delivered == 1
    with sm.AuditLog(path, write=True) as log:
        log.add("left", "a")
    anchored(path, kept)
    assert len(kept.read_text().splitlines()) == 2
    assert main(audit) == 0
    assert f"{kept} agrees, up to entry 6" in capsys.readouterr().err

    cut = shutil.copy(path, tmp_path / "cut.db")
    rewrite(cut, "DELETE FROM entries WHERE id = 6")
    assert main(["audit", str(cut)]) == 0  # nothing in the file shows it
    capsys.readouterr()
    assert main(["audit", str(cut), *audit[2:]]) == 1
    assert f"entry 6 is missing, {kept} has a line on it" in capsys.readouterr().err

    monkeypatch.setattr(Sealer, "fits", lambda *given: True)  # as if forged with the key
    forged = shutil.copy(path, tmp_path / "forged.db")
    rewrite(forged, ALTERED)
    assert main(["audit", str(forged), *audit[2:]]) == 1
    assert f"entry 5, or one before it, was altered after {kept}" in capsys.readouterr().err
    rewrite(path, "UPDATE entries SET time = 0 WHERE id = 1")
    assert main(audit) == 1
    assert f"{kept} has no line on {path}: the log was replaced or rewritten" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("line", ["hello", "[]", "[" * 99_999, '{"log": "00", "entry": true}'])
def test_a_file_that_holds_no_anchors(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    kept = tmp_path / "anchors"
    anchored(path, kept)
    kept.write_text(kept.read_text() + line + "\n")
    assert main(["audit", str(path), "--anchor", str(kept)]) == 2
    assert f"line 2 of {kept} is no anchor of an audit log" in capsys.readouterr().err
    assert main(["audit", str(path), "--anchor", str(tmp_path / "none")]) == 2
    assert "the anchors in" in capsys.readouterr().err


def test_an_anchor_at_an_address(path: Path) -> None:
    received: list[bytes] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Keeper) as keeper:
        threading.Thread(target=keeper.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{keeper.server_port}/"
        assert anchored(path, address).delivered == 1
        keeper.shutdown()
    line = json.loads(received[0])
    with sm.AuditLog(path) as log:
        assert {name: line[name] for name in ("log", "entry", "digest")} == log.head()
    failed = anchored(path, address)  # nobody listens any more
    assert failed.failed >= 1
    assert "URLError" in failed.last_error


@pytest.mark.parametrize("target", ["ftp://x/y", "http://x:99999", "/no/such/folder/anchors"])
def test_what_cannot_be_an_anchor(target: str) -> None:
    with pytest.raises(InvalidInput, match="an anchor is a file in an existing folder, or an http"):
        Anchor(target)


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
