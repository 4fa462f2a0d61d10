"""Small studies, and what a study on disk holds."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import safemargin as sm
from helpers.worlds import (
    always_first,
    make_branching,
)
from safemargin.study.store import DATABASE

SETTINGS = sm.Settings(
    trial_plan="paper", n_values=(1, 2, 4), sampling_error=2.0, max_trials=30, opening=6
)


POLICY = sm.load_policy(always_first, kind="logits")


TABLES = ("episodes", "episode_proxies", "moments", "moment_proxies", "estimates")


def create(path: Path, env: Any = make_branching, policy: Any = POLICY, **more: Any) -> sm.Study:
    return sm.Study.create(path, env, policy, more.pop("settings", SETTINGS), **more)


def select(folder: Path, sql: str) -> list[Any]:
    """The rows of a query, read with plain SQL."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as plain:
        return plain.execute(sql).fetchall()


def contents(path: Path) -> dict[str, list[Any]]:
    """Everything in a study that must not depend on how it was collected."""
    return {table: sorted(select(path, f"SELECT * FROM {table}")) for table in TABLES}


def estimates_in(path: Path) -> int:
    if not (path / DATABASE).exists():
        return 0
    return int(select(path, "SELECT COUNT(*) FROM estimates")[0][0])


def damaged(study: Path, target: Path, *statements: str) -> Path:
    """A copy of a study after something happened to its database."""
    target.mkdir()
    shutil.copy(study / DATABASE, target)
    with sqlite3.connect(target / DATABASE) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return target
