"""The study on disk: whole, exclusive, and honest about damage."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mounts import FORBIDDEN, FULL, READ_ONLY, python_on
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from safemargin.core.records import Episode, EpisodeKey, Estimate, Measurement, Moment
from safemargin.errors import StudyBusy, StudyCorrupt, StudyError
from safemargin.study.blobs import pack, unpack
from safemargin.study.folders import put_in_place
from safemargin.study.store import DATABASE, Store

KEY = EpisodeKey("natural", 7)


def an_episode(steps: int = 5) -> Episode:
    generator = np.random.default_rng(steps)
    return Episode(
        key=KEY,
        seed=11,
        opening=1,
        actions=generator.integers(0, 3, steps),
        rewards=generator.normal(size=steps),
        scores=generator.normal(size=(steps, 3)).astype(np.float32),
        proxies={"plain": generator.normal(size=steps), "by_n": generator.normal(size=(steps, 2))},
        terminated=False,
        truncated=True,
        cut=False,
    )


def a_measurement(n: int) -> Measurement:
    """The losses are n − 1, n and n + 1, so their half-width is t / √3."""
    estimate = Estimate(n, float(n), 4.302653 / 3**0.5, 3, False, 1.5, False)
    return Measurement(estimate, np.array([2.5, 1.5, 0.5]) - n, np.array([1.5]), steps=99)


ENTRIES_OF_A_STUDY: dict[str, Any] = {
    "environment": {"name": "e", "arguments": {}, "identity": "sha256:1", "spec": None},
    "policy": {"description": "p", "identity": "sha256:2", "kind": "q", "source": None},
    "settings": {"n_values": [1, 4], "trials": 3},
    "proxies": ["plain", "by_n"],
    "extra_proxies": [],
    "selection_proxy": "plain",
    "diagnosis": {
        "way": "snapshot",
        "environment_deterministic": True,
        "policy_deterministic": True,
        "findings": [],
    },
}


COUNT = """
import sys
from pathlib import Path
from safemargin.errors import StudyError
from safemargin.study.store import Store
try:
    print(len(Store.open(Path(sys.argv[1])).episode_outlines()))
except StudyError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "study", ENTRIES_OF_A_STUDY)


@given(
    hnp.arrays(
        st.sampled_from(["<f8", "<f4", "<i8", "|u1", "|b1"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    )
)
def test_arrays_survive_bit_for_bit(array: np.ndarray) -> None:
    back = unpack(pack(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.data())
def test_bytes_that_have_changed_are_damage_or_change_nothing(data: st.DataObject) -> None:
    array = np.arange(20.0)
    packed = bytearray(pack(array))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(StudyCorrupt):  # such bits as mean nothing may change
        assert unpack(bytes(packed)).tobytes() == array.tobytes()
    with pytest.raises(StudyCorrupt, match="an array in the study's database is damaged"):
        unpack(bytes(packed[:place]))


@pytest.mark.parametrize("said", [b"", b"no header", b"<f8 3\n12345678", b"<q9 1\n1", b"<f8 x\n"])
def test_what_no_array_was_packed_into_is_damage(said: bytes) -> None:
    with pytest.raises(StudyCorrupt, match="an array in the study's database is damaged"):
        unpack(zlib.compress(said))


def test_an_episode_survives_bit_for_bit(store: Store) -> None:
    episode = an_episode()
    store.add_episodes([episode], seconds=0.5)
    store.add_episodes([episode], seconds=9.9)  # done again after a fault: nothing changes
    back = store.episode(KEY)
    for name in ("actions", "rewards", "scores"):
        assert getattr(back, name).tobytes() == getattr(episode, name).tobytes()
    assert {name: values.tolist() for name, values in back.proxies.items()} == {
        name: values.tolist() for name, values in episode.proxies.items()
    }
    assert (back.key, back.seed, back.opening) == (KEY, 11, 1)
    assert (back.terminated, back.truncated, back.cut) == (False, True, False)
    assert back.fingerprint == episode.fingerprint
    assert store.episode_outlines() == {KEY: (1, 5, False)}
    assert store._query("SELECT COUNT(*), SUM(seconds) FROM costs") == [(1, 0.5)]


def test_tuples_can_be_read_with_plain_sql(store: Store) -> None:
    episode = an_episode()
    store.add_episodes([episode], seconds=0.1)
    store.add_moments([(Moment(KEY, 3), episode)])
    for n in (1, 4):
        store.add_measurement(Moment(KEY, 3), a_measurement(n), seconds=0.1)
    plain = sqlite3.connect(store.folder / DATABASE)
    rows = plain.execute(
        "SELECT phase, episode, life, step, proxy, proxy_value, n, criticality, trials, capped "
        "FROM tuples ORDER BY proxy, n"
    ).fetchall()
    by_n, once = episode.proxies["by_n"][3], episode.proxies["plain"][3]
    assert rows == [
        ("natural", 7, 0, 3, "by_n", by_n[0], 1, 1.0, 3, 0),
        ("natural", 7, 0, 3, "by_n", by_n[1], 4, 4.0, 3, 0),
        ("natural", 7, 0, 3, "plain", once, 1, 1.0, 3, 0),
        ("natural", 7, 0, 3, "plain", once, 4, 4.0, 3, 0),
    ]
    assert store.moments() == [Moment(KEY, 3)]
    assert store.estimated() == {(KEY, 1), (KEY, 4)}
    back = store.measurements(KEY)[1]
    assert back.estimate == a_measurement(4).estimate
    assert back.perturbed.tolist() == [-1.5, -2.5, -3.5]
    assert back.steps == 99


def test_a_failing_piece_leaves_nothing_behind(store: Store) -> None:
    bad = a_measurement(1)
    object.__setattr__(bad.estimate, "mean", None)
    with pytest.raises(sqlite3.IntegrityError, match="NOT NULL"):
        store.add_measurement(Moment(KEY, 3), bad, seconds=0.1)
    assert store.estimated() == set()
    assert store._query("SELECT COUNT(*) FROM costs") == [(0,)]
    store.add_measurement(Moment(KEY, 3), a_measurement(1), seconds=0.1)  # and it still works


def test_one_writer_at_a_time(store: Store) -> None:
    other = Store.open(store.folder)
    with store.writing():
        with pytest.raises(StudyBusy, match="another process is collecting into"), other.writing():
            pass
        other.meta("settings")  # reading is always possible
    with other.writing():
        pass


def test_there_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"there is no study in .*\(no study.db\)"):
        Store.open(tmp_path)
    with pytest.raises(StudyError, match="there is no study in.*`safemargin collect"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "margins.json").touch()
    with pytest.raises(StudyError, match="that is a file; name the folder"):
        Store.open(tmp_path / "margins.json")
    inner = tmp_path / "demo" / "study"
    inner.mkdir(parents=True)
    (inner / "study.db").touch()
    for near in (inner.parent, inner / "study.db"):
        with pytest.raises(StudyError, match=f"did you mean {inner}\\?"):
            Store.open(near)


def test_a_study_is_not_made_twice(store: Store) -> None:
    with pytest.raises(StudyError, match="already holds a study"):
        Store.create(store.folder, {})


def make_studies(folder: Path, who: int, barrier: Any, reports: Any) -> None:
    """Be one of several that make the same studies at the same moments."""
    for number in range(ROUNDS):
        barrier.wait(60)
        entries = {**ENTRIES_OF_A_STUDY, "who": who}
        try:
            with contextlib.closing(Store.create(folder / str(number), entries)) as made:
                made.set_meta("went on", True)
            reports.put((number, who, "made"))
        except StudyError as error:
            reports.put((number, who, str(error)))


ROUNDS = 30


def test_of_several_that_make_a_study_at_once_one_succeeds(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, reports = spawn.Barrier(3), spawn.Queue()
    rivals = [
        spawn.Process(target=make_studies, args=(tmp_path, who, barrier, reports), daemon=True)
        for who in range(3)
    ]
    for rival in rivals:
        rival.start()
    heard = [reports.get(timeout=60) for _ in range(3 * ROUNDS)]
    for rival in rivals:
        rival.join(60)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        said = {who: text for which, who, text in heard if which == number}
        winners = [who for who, text in said.items() if text == "made"]
        assert len(winners) == 1, said
        refusals = {text for text in said.values() if text != "made"}
        assert refusals == {f"{folder} already holds a study"}
        assert [path.name for path in folder.iterdir()] == [DATABASE]
        study = Store.open(folder)
        assert (study.meta("who"), study.meta("went on")) == (winners[0], True)
        study.close()


def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT and some network disks; none of them can be mounted in every test run."""

    def refuse(*names: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    Store.create(tmp_path / "study", ENTRIES_OF_A_STUDY).close()
    assert [path.name for path in (tmp_path / "study").iterdir()] == [DATABASE]
    draft, taken = tmp_path / "draft", tmp_path / "study" / DATABASE
    draft.touch()
    with pytest.raises(FileExistsError):
        put_in_place(draft, taken)
    assert taken.stat().st_size > 0


@pytest.mark.parametrize("kind", ["text", "short", "empty", "zeros", "truncated", "scrambled"])
def test_damage_is_one_sentence_and_is_left_alone(store: Store, kind: str) -> None:
    for index in range(40):
        episode = an_episode(400 + index)
        object.__setattr__(episode, "key", EpisodeKey("natural", index))
        store.add_episodes([episode], seconds=0.1)
    store.close()
    file = store.folder / DATABASE
    whole = file.read_bytes()
    damaged = {
        "text": b"this is not a database at all, but a text that someone saved here" * 99,
        "short": b"a word",
        "empty": b"",
        "zeros": bytes(len(whole)),
        "truncated": whole[: len(whole) // 2],
        "scrambled": whole[:4096] + b"\x99" * 8192 + whole[12288:],
    }[kind]
    file.write_bytes(damaged)
    with pytest.raises(StudyCorrupt, match=r"is damaged \(.*\); restore it from a copy"):
        Store.open(store.folder)
    assert file.read_bytes() == damaged


def test_a_damaged_array_is_one_sentence(store: Store) -> None:
    store.add_episodes([an_episode()], seconds=0.1)
    store.close()
    plain = sqlite3.connect(store.folder / DATABASE)
    plain.execute("UPDATE episodes SET rewards = x'0011'")
    plain.commit()
    plain.close()
    with pytest.raises(StudyCorrupt, match="is damaged"):
        Store.open(store.folder).episode(KEY)


def test_a_full_disk_keeps_what_was_finished(store: Store) -> None:
    store.add_episodes([an_episode()], seconds=0.1)
    pages = store._query("PRAGMA page_count")[0][0]
    store._query(f"PRAGMA max_page_count = {pages}")
    large = an_episode(200_000)
    object.__setattr__(large, "key", EpisodeKey("natural", 8))
    with pytest.raises(StudyError, match="the disk is full: .* keeps everything finished so far"):
        store.add_episodes([large], seconds=0.1)
    store.close()
    again = Store.open(store.folder)
    assert set(again.episode_outlines()) == {KEY}
    again.add_episodes([large], seconds=0.1)


def test_a_study_on_a_full_disk_is_not_called_damaged(store: Store, tmp_path: Path) -> None:
    store.close()
    disk = tmp_path / "disk"
    disk.mkdir()
    store.folder.rename(tmp_path / "disk.content")
    done = python_on(FULL, disk, "-c", COUNT, str(disk))
    assert done.stdout == (
        f"StudyError: the disk is full: {disk} keeps everything finished so far; "
        "free some space and run the same command again\n"
    )


LIMITED = """
import resource, sys
from pathlib import Path
from safemargin.errors import StudyError
from safemargin.study.store import Store
store = Store.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
try:
    store.set_meta("large", 99_999 * "x")
except StudyError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_disk_that_fails_with_room_on_it(store: Store) -> None:
    store.close()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, store.folder], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"StudyError: the disk under {store.folder} is failing, or your quota is used up "
        "(disk I/O error): the study keeps everything finished so far; check the disk, "
        "then run the same command again\n"
    )
    assert Store.open(store.folder).meta("large") is None


def test_a_newer_format_is_not_touched(store: Store) -> None:
    store.set_meta("format", 99)
    store.close()
    with pytest.raises(StudyError, match="has format 99, this safemargin reads 2"):
        Store.open(store.folder)


def test_an_entry_that_is_no_json_is_damage(store: Store) -> None:
    store._query("UPDATE meta SET value = '[1,' WHERE name = 'policy'")
    with pytest.raises(StudyCorrupt, match="the entry 'policy' of its table meta is not JSON"):
        store.meta("policy")


def test_a_missing_entry_is_damage(store: Store) -> None:
    store._query("DELETE FROM meta WHERE name = 'settings'")
    store.close()
    with pytest.raises(StudyCorrupt, match="the entry 'settings' of its table meta is missing"):
        Store.open(store.folder)


@pytest.mark.parametrize("table", ["episodes", "moment_proxies", "moments"])
def test_missing_rows_are_damage(store: Store, table: str) -> None:
    episode = an_episode()
    store.add_episodes([episode], seconds=0.1)
    store.add_moments([(Moment(KEY, 3), episode)])
    store.add_measurement(Moment(KEY, 3), a_measurement(1), seconds=0.1)
    store._query(f"DELETE FROM {table}")
    store.close()
    with pytest.raises(StudyCorrupt, match=f"rows of {table} are missing"):
        Store.open(store.folder)


def test_a_copied_folder_is_the_study(store: Store, tmp_path: Path) -> None:
    """Nothing is hidden elsewhere."""
    store.add_episodes([an_episode()], seconds=0.1)
    store.close()
    assert [path.name for path in store.folder.iterdir()] == [DATABASE]
    shutil.copytree(store.folder, tmp_path / "copy")
    assert Store.open(tmp_path / "copy").episode(KEY).seed == 11


@pytest.mark.parametrize("left", ["writer", "log and index", "log", "empty log", "nothing"])
@pytest.mark.parametrize("disk", [READ_ONLY, FORBIDDEN], ids=["read-only", "forbidden"])
def test_a_study_that_may_only_be_read_is_read_whole(
    store: Store, tmp_path: Path, left: str, disk: str
) -> None:
    store.add_episodes([an_episode()], seconds=0.1)
    folder = store.folder if left == "writer" else tmp_path / "archive"
    if left in ("empty log", "nothing"):
        store.close()
    if left != "writer":
        shutil.copytree(store.folder, folder)  # of an open study: what kill -9 would leave
    log, index = folder / f"{DATABASE}-wal", folder / f"{DATABASE}-shm"
    assert log.exists() == index.exists() == (left not in ("empty log", "nothing"))
    if left == "log":
        index.unlink()
    if left == "empty log":
        log.touch()
    done = python_on(disk, folder, "-c", COUNT, str(folder))
    folder.chmod(0o755)
    if left == "log":
        assert done.stdout.startswith(f"StudyError: {folder / DATABASE} cannot be read where it is")
        assert "copy the whole folder to a writable disk" in done.stdout
        assert len(Store.open(folder).episode_outlines()) == 1  # where it can be written
    else:
        assert done.stdout == "1\n", done.stderr


def test_meta_is_json(store: Store) -> None:
    store.set_meta("target", {"natural": 3})
    raw = store._query("SELECT value FROM meta WHERE name = 'target'")[0][0]
    assert json.loads(raw) == store.meta("target") == {"natural": 3}
    assert store.meta("nothing") is None
