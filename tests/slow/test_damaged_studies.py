"""Studies whose databases were damaged at random open as they are, or say so in one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sqlite3
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mutations import CODE, PROGRAMS, Guard

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import SafemarginError
from safemargin.study.blobs import pack
from safemargin.study.findings import findings
from safemargin.study.schema import SCHEMA
from safemargin.study.store import DATABASE

pytestmark = pytest.mark.slow

SLOWEST = 20.0
"""Seconds that one command may take at most: far more than any takes, far less than a hang."""

TABLES = ["meta", "episodes", "episode_proxies", "moments", "moment_proxies", "estimates", "costs"]
NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 7, 2**31, 2**62, 1e-320, 0.5, 1e308, float("inf")]
ARRAYS = [
    np.array([np.nan] * 12),
    np.array([np.inf]),
    np.zeros(12),
    np.zeros((12, 0)),
    np.array(3.0),
    np.zeros(0),
    np.ones(12, dtype=bool),
    np.arange(40, dtype=np.int8),
]
VALUES = [None, "", "natural", "x", b"", b"\xff\xfe", *NUMBERS, *map(pack, ARRAYS)]
JSON = [None, True, "", "x", [], {}, [1], {"a": 1}, -1, 0, 1, 1e300, 10**30, [None], [[]]]


def change_a_cell(database: sqlite3.Connection, pick: random.Random) -> None:
    table = pick.choice(TABLES)
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    column, key = pick.choice(columns), f"{columns[0]} || {columns[1]}"
    rows = [row[0] for row in database.execute(f"SELECT {key} FROM {table}")]
    values = {"value": pick.choice(VALUES), "row": pick.choice(rows)}
    other = [f"{column} + 1", f"{column} * 1.5", "CAST(x'e9ff' AS TEXT)"]
    new = pick.choice([":value", ":value", ":value", *other])
    where = pick.choice(["TRUE", *[f"{key} = :row"] * 4])
    database.execute(f"UPDATE OR IGNORE {table} SET {column} = {new} WHERE {where}", values)


def delete_rows(database: sqlite3.Connection, pick: random.Random) -> None:
    database.create_function("chance", 0, pick.random)
    share = pick.choice([0.01, 0.2, 1.0])
    database.execute(f"DELETE FROM {pick.choice(TABLES)} WHERE chance() < ?", [share])


def drop(database: sqlite3.Connection, pick: random.Random) -> None:
    name = pick.choice([*TABLES, "tuples"])
    database.execute(f"DROP {'VIEW' if name == 'tuples' else 'TABLE'} {name}")


def change_an_entry(database: sqlite3.Connection, pick: random.Random) -> None:
    name, text = pick.choice(
        database.execute("SELECT name, value FROM meta ORDER BY name").fetchall()
    )
    top = [json.loads(text)]
    inside, at = top, 0  # the list or mapping, and where in it
    while isinstance(inside[at], dict | list) and inside[at] and pick.random() < 0.8:
        inside = inside[at]
        at = pick.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    if pick.random() < 0.2:
        del inside[at]
    else:
        inside[at] = pick.choice(JSON)
    value = json.dumps(top[0]) if top else "null"
    database.execute("UPDATE meta SET value = ? WHERE name = ?", [value, name])


def change_the_schema(database: sqlite3.Connection, pick: random.Random) -> None:
    word = pick.choice([word.strip(",") for word in SCHEMA.split() if word.isidentifier()])
    database.execute("PRAGMA writable_schema = ON")
    new = pick.choice(["é", "x", "n", "step", "BLOB", "--"])
    database.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?)", [word, new])


def change_bytes(file: Path, pick: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(pick.choice([1, 2, 20, 400])):
        content[pick.randrange(len(content))] = pick.randrange(256)
    file.write_bytes(content[: pick.choice([len(content)] * 4 + [pick.randrange(len(content))])])


STATEMENTS: list[Callable[[sqlite3.Connection, random.Random], None]] = [
    *[change_a_cell] * 6,
    *[change_an_entry] * 4,
    delete_rows,
    drop,
    change_the_schema,
]


def damage(folder: Path, pick: random.Random) -> str:
    """Damage a study in one random way, and return its name."""
    kind: Any = pick.choice([*STATEMENTS, *[change_bytes] * 3])
    if kind is change_bytes:
        change_bytes(folder / DATABASE, pick)
    else:
        database = sqlite3.connect(folder / DATABASE)
        kind(database, pick)
        database.commit()
        database.close()
    return str(kind.__name__)


def ask(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its status and what it complained about, if it did."""
    answer, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(complaint):
        status = main([*words, "--json"])
    assert type(json.loads(answer.getvalue())) is dict
    said = complaint.getvalue() if status else ""
    assert status in (0, 2)
    assert bool(status) == said.startswith("safemargin: ") == (said.count("\n") == 1)
    return status, said


def use(folder: Path, pick: random.Random) -> None:
    """Read a study in ways that no command asks for on its own."""
    with sm.Study.open(folder) as study:
        findings(study, study.status(), None)
        repr(study)
        for key in study.store.episode_outlines():
            study.store.episode(key)
            study.store.measurements(key)


def test_damage_is_one_sentence(drawn_study: Path, whole: bool, tmp_path: Path) -> None:
    wrong, refused, guard = [], 0, Guard()
    folder, written = tmp_path / "study", tmp_path / "written"
    commands: list[Callable[[random.Random], list[str]]] = [
        lambda pick: ["status", str(folder)],
        lambda pick: [
            *("fit", str(folder), "-o", str(written), "--confidence", "0.8"),
            *("--estimand", pick.choice(["mean", "single-run"])),
            *("--proxy", pick.choice(["log_prob_range", "entropy", "certainty"])),
        ],
        lambda pick: ["export", str(folder), "--steps", "-o", str(tmp_path / "steps.csv")],
    ]
    count = 10_000 if whole else 80
    for number in range(-3, count):  # the first are whole, and load what is loaded when first used
        pick = random.Random(number)
        folder.mkdir()
        shutil.copy(drawn_study / DATABASE, folder)
        kind = damage(folder, pick) if number >= 0 else "none"
        for work in (*commands, None):
            began = time.perf_counter()
            with warnings.catch_warnings(action="ignore"):  # about fits on fewer moments
                try:
                    if work is None:
                        with guard.watching(*(CODE if number >= 0 else ()), *PROGRAMS):
                            use(folder, pick)
                    else:
                        with guard.watching(*PROGRAMS):
                            status, said = ask(*work(pick))
                        refused += bool(status)
                        assert number >= 0 or not status, said
                except SafemarginError as error:
                    if not str(error).isprintable():
                        wrong.append(f"{number}, {kind}: more than a line: {error!r}")
                except Exception:  # noqa: BLE001
                    wrong.append(f"{number}, {kind}: {traceback.format_exc()[-500:]}")
            if (seconds := time.perf_counter() - began) > SLOWEST:
                wrong.append(f"{number}, {kind}: took {seconds:.1f} s")
        shutil.rmtree(folder)
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(wrong[:20])
    assert not guard.seen, "\n".join(guard.seen[:20])
    assert 0.2 * count < refused < 2.9 * count
