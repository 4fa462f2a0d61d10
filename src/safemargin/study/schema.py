"""The tables of a study's database, and what must hold in them."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from typing import Any

FORMAT = 2
"""The version of the schema, stored as the entry `format` of the table `meta`."""

_EPISODE = """phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL"""
"""The columns of an episode's key."""

_PIECE = f"""{_EPISODE},
    n INTEGER NOT NULL"""
"""The columns that name what was done at once: an episode, or its moment for one n."""

_ESTIMATE = f"""{_PIECE},
    criticality REAL NOT NULL,
    half_width REAL NOT NULL,
    trials INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    capped INTEGER NOT NULL,
    unperturbed REAL NOT NULL,
    perturbed_returns BLOB NOT NULL,
    unperturbed_returns BLOB NOT NULL,"""

_COST = f"""{_PIECE},                   -- 0: the episode itself
    steps INTEGER NOT NULL,             -- simulator steps
    seconds REAL NOT NULL,              -- of a single worker
    wasted INTEGER NOT NULL,            -- steps of speculative trials that were discarded
    remembered INTEGER NOT NULL,        -- states kept to detect where the rollouts merge"""

_MOMENT_PROXY = f"""{_EPISODE},
    proxy TEXT NOT NULL,
    n INTEGER NOT NULL,                 -- 0: the proxy does not depend on n
    value REAL NOT NULL,"""

_EPISODE_PROXY = f"""{_EPISODE},
    proxy TEXT NOT NULL,
    proxies BLOB NOT NULL,              -- one value per step"""

FEATURES_TABLE = f"""
CREATE TABLE moment_features (          -- for learned proxies; see policies.features
    {_EPISODE},
    hidden BLOB NOT NULL,               -- [lags, width]
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
"""
"""The table for learned proxies; studies made by earlier versions get it when it is needed."""

TUPLES = """tuples AS
    SELECT phase, episode, life, step, proxy, value AS proxy_value, estimates.n AS n,
           criticality, half_width, trials, exact, capped, unperturbed
    FROM estimates
    JOIN moments USING (phase, episode, life)
    JOIN moment_proxies USING (phase, episode, life)
    WHERE moment_proxies.n = 0 OR moment_proxies.n = estimates.n"""
"""The view that joins what people query."""

SCHEMA = f"""{FEATURES_TABLE}
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
CREATE TABLE episodes (
    phase TEXT NOT NULL,                -- 'natural' or 'spread'
    episode INTEGER NOT NULL,           -- number within the phase
    life INTEGER NOT NULL,              -- within the game; 0 where there are no lives
    seed INTEGER NOT NULL,
    opening INTEGER NOT NULL,           -- leading random actions
    steps INTEGER NOT NULL,
    total_reward REAL NOT NULL,
    ended TEXT NOT NULL,                -- 'terminated', 'truncated' or 'cut'
    fingerprint TEXT NOT NULL,          -- equal for copies of one another
    actions BLOB NOT NULL,
    rewards BLOB NOT NULL,
    scores BLOB NOT NULL,
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
CREATE TABLE episode_proxies (
    {_EPISODE_PROXY}
    PRIMARY KEY (phase, episode, life, proxy)
) WITHOUT ROWID;
CREATE TABLE moments (
    {_EPISODE},
    step INTEGER NOT NULL,
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
CREATE TABLE moment_proxies (
    {_MOMENT_PROXY}
    PRIMARY KEY (phase, episode, life, proxy, n)
) WITHOUT ROWID;
CREATE TABLE estimates (
    {_ESTIMATE}
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE TABLE costs (                    -- the only table that differs from run to run
    {_COST}
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE VIEW {TUPLES};
"""

MORE_TABLES = f"""
CREATE TABLE IF NOT EXISTS more_estimates (
    about INTEGER NOT NULL,             -- the position, from 1, in the entry `more` of `meta`
    {_ESTIMATE}
    PRIMARY KEY (about, phase, episode, life, n)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more_costs (
    about INTEGER NOT NULL,
    {_COST}
    PRIMARY KEY (about, phase, episode, life, n)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more_moment_proxies (     -- learned ones only
    about INTEGER NOT NULL,
    {_MOMENT_PROXY}
    PRIMARY KEY (about, phase, episode, life, proxy, n)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more_episode_proxies (    -- learned ones only
    about INTEGER NOT NULL,
    {_EPISODE_PROXY}
    PRIMARY KEY (about, phase, episode, life, proxy)
) WITHOUT ROWID;
"""
"""What a study holds of other mistakes and losses than its first ones, at the same moments.

A study gets these tables when it is first asked for more, so that those of earlier versions, which
know one kind of mistake and one loss, are read and written as ever.
"""


def views(about: int) -> str:
    """Return SQL after which `estimates`, `costs`, … are those of other mistakes or losses.

    The views are temporary, so they belong to one connection; `main.estimates` is the table itself.
    """
    learned = "proxy IN ('learned', 'learned-regret', 'learned-stakes')"
    columns = {
        table: ", ".join(_columns(table))
        for table in ("estimates", "costs", "moment_proxies", "episode_proxies")
    }
    kept = {"costs": "n = 0", "moment_proxies": f"NOT {learned}"}
    kept["episode_proxies"] = kept["moment_proxies"]
    made = []
    for table, names in columns.items():
        view = f"CREATE TEMP VIEW {table} AS SELECT {names} FROM main.more_{table}"
        shared = f"UNION ALL SELECT {names} FROM main.{table} WHERE {kept.get(table)}"
        made.append(f"{view} WHERE about = {about} {shared if table in kept else ''}")
    return ";\n".join([*made, f"CREATE TEMP VIEW {TUPLES}"])


@functools.cache
def _columns(table: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]


ENTRIES: dict[str, Any] = {
    "environment": {"name": str, "arguments": dict, "identity": str, "spec": str | None},
    "policy": {"description": str, "identity": str, "kind": str, "source": str | None},
    "settings": dict,
    "proxies": [str],
    "extra_proxies": [str],
    "selection_proxy": str,
    "diagnosis": {
        "way": str,
        "environment_deterministic": bool,
        "policy_deterministic": bool,
        "findings": [{"level": str, "text": str}],
    },
}
"""The entries of the table `meta` that every study has, besides its format, and their forms."""

OPTIONAL_ENTRIES: dict[str, Any] = {
    "learned": {"probe": dict, "found": dict, "groups": dict},
    "learned-regret": {"probe": dict, "found": dict, "groups": dict},
    "learned-stakes": {"probe": dict, "found": dict, "groups": dict},
    "proof": {"version": int, "runs": str, "proxies": dict},
    "target": {"natural": int, "spread": int, "workers": int},
    "versions": dict,
    "perturbation": {"identity": str},
    "reference": {"identity": str},
    "signature": str | None,
    "more": [{"perturb": str, "signal": str}],
}
"""Entries that a study may have, and their forms."""

OWN_ENTRIES = frozenset(("learned", "learned-regret", "learned-stakes", "perturbation", "target"))
"""Entries that each kind of mistake and loss has for itself; those of number 2 in the entry `more`
are called `learned#2`, and so on."""

_CONDITIONS = {
    "episodes": "opening BETWEEN 0 AND steps AND ended IN ('terminated', 'truncated', 'cut')",
    "episode_proxies": "TRUE",
    "moments": "TRUE",
    "moment_proxies": "TRUE",
    "estimates": "trials > 0",
    "costs": "steps >= 0",
    "more_estimates": "trials > 0 AND about > 0",
    "more_costs": "steps >= 0 AND about > 0",
    "more_moment_proxies": "about > 0",
    "more_episode_proxies": "about > 0",
}
"""Table → what holds in each of its rows, besides what holds in all of them."""

REFERENCES = (
    ("moments", "episodes", "phase, episode, life"),
    ("estimates", "moments", "phase, episode, life"),
    ("estimates", "costs", "phase, episode, life, n"),
)
"""Each row of a first table has one in the second with the same values of these columns."""

PROXY_REFERENCES = (
    ("episodes", "episode_proxies", "phase, episode, life"),
    ("moments", "moment_proxies", "phase, episode, life"),
    ("estimates", "tuples", "phase, episode, life, n"),
)
"""The same, for every proxy of the study."""


@functools.cache
def conditions() -> dict[str, str]:
    """Return table → the SQL condition that each of its rows meets."""
    found = {}
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA + MORE_TABLES)
        for table, special in _CONDITIONS.items():
            types = [
                f"typeof({name}) = '{kind.lower()}'"
                for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
            ]
            key = "phase IN ('natural', 'spread') AND episode >= 0 AND life >= 0"
            found[table] = " AND ".join([*types, key, special])
    return found


def has_form(value: Any, form: Any) -> bool:
    """Return whether a JSON value has a form: a type, [form of each], or {name: form}."""
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            name in value and has_form(value[name], part) for name, part in form.items()
        )
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(each, form[0]) for each in value)
    return isinstance(value, form)
