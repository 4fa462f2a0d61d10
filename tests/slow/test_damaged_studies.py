"""Studies whose databases were damaged at random open as they are, or say so in one sentence."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import safemargin as sm
from safemargin.errors import SafemarginError
from safemargin.study.blobs import pack
from safemargin.study.findings import findings
from safemargin.study.schema import SCHEMA
from safemargin.study.store import DATABASE

pytestmark = pytest.mark.slow

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


def use(folder: Path, pick: random.Random) -> None:
    """Read a study in every way that runs no code of its own."""
    with sm.Study.open(folder) as study:
        findings(study, study.status(), None)
        repr(study)
        study.fit(
            0.8, estimand=pick.choice(["mean", "single-run"]), proxy=pick.choice(study.proxies)
        )
        study.export(folder / "steps.csv", steps=True, episodes=3)
        for key in study.store.episode_outlines():
            study.store.episode(key)
            study.store.measurements(key)


def test_damage_is_one_sentence(drawn_study: Path, whole: bool, tmp_path: Path) -> None:
    wrong, refused = [], 0
    for number in range(10_000 if whole else 200):
        pick = random.Random(number)
        folder = tmp_path / "study"
        folder.mkdir()
        shutil.copy(drawn_study / DATABASE, folder)
        kind = damage(folder, pick)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fits on fewer moments
            try:
                use(folder, pick)
            except SafemarginError as error:
                refused += 1
                if "\n" in str(error):
                    wrong.append(f"{number}, {kind}: {error}")
            except Exception as error:  # noqa: BLE001
                wrong.append(f"{number}, {kind}: {error!r}")
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)
    assert refused > 0
