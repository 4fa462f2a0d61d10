"""A study on disk: one folder with one SQLite database, one transaction for each finished piece.

Arrays are stored as little-endian bytes, compressed with zlib; everything that people query
(episodes, moments, estimates) is in plain columns, and the view `tuples` joins it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.read_only import open_read_only
from safemargin.core.records import Array, Episode, EpisodeKey, Estimate, Measurement, Moment, Phase
from safemargin.errors import StudyError, StudyExists
from safemargin.study.blobs import pack, unpack
from safemargin.study.disk_faults import damaged, disk_faults
from safemargin.study.folders import held, put_in_place

FORMAT = 2
DATABASE = "study.db"
ENTRIES = (
    "environment",
    "policy",
    "settings",
    "proxies",
    "extra_proxies",
    "selection_proxy",
    "diagnosis",
)
"""What the table `meta` of every study holds, besides the format."""

SCHEMA = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
CREATE TABLE episodes (
    phase TEXT NOT NULL,                -- 'natural' or 'spread'
    episode INTEGER NOT NULL,           -- number within the phase
    life INTEGER NOT NULL,              -- of the same game; 0 where there are no lives
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
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    proxy TEXT NOT NULL,
    proxies BLOB NOT NULL,              -- one value a step
    PRIMARY KEY (phase, episode, life, proxy)
) WITHOUT ROWID;
CREATE TABLE moments (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    step INTEGER NOT NULL,
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
CREATE TABLE moment_proxies (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    proxy TEXT NOT NULL,
    n INTEGER NOT NULL,                 -- 0: the proxy does not look at n
    value REAL NOT NULL,
    PRIMARY KEY (phase, episode, life, proxy, n)
) WITHOUT ROWID;
CREATE TABLE estimates (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    n INTEGER NOT NULL,
    criticality REAL NOT NULL,
    half_width REAL NOT NULL,
    trials INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    capped INTEGER NOT NULL,
    unperturbed REAL NOT NULL,
    perturbed_returns BLOB NOT NULL,
    unperturbed_returns BLOB NOT NULL,
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE TABLE costs (                    -- the only table that differs from run to run
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    n INTEGER NOT NULL,                 -- 0: the episode itself
    steps INTEGER NOT NULL,             -- simulator steps
    seconds REAL NOT NULL,              -- of one worker
    wasted INTEGER NOT NULL,            -- steps in trials begun ahead and then not wanted
    remembered INTEGER NOT NULL,        -- states held to see where the moment's rollouts meet
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE VIEW tuples AS
    SELECT phase, episode, life, step, proxy, value AS proxy_value, estimates.n AS n,
           criticality, half_width, trials, exact, capped, unperturbed
    FROM estimates
    JOIN moments USING (phase, episode, life)
    JOIN moment_proxies USING (phase, episode, life)
    WHERE moment_proxies.n = 0 OR moment_proxies.n = estimates.n;
"""


class Store:
    """The database of one study. Reading needs no lock; writing is for one process at a time."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder.absolute()  # still right after the process changes its folder
        self._connection = connection

    @classmethod
    def create(cls, folder: Path, meta: Mapping[str, Any]) -> Store:
        """A new, empty study; StudyExists where the folder holds one, if only since a moment."""
        database = folder / DATABASE
        with disk_faults(folder):
            if database.exists():
                raise StudyExists(f"{folder} already holds a study")
            folder.mkdir(parents=True, exist_ok=True)
            # Built aside, each process for itself, so that a study is there as a whole or not.
            draft = folder / f"{DATABASE}.{secrets.token_hex(4)}"
            try:
                with contextlib.closing(sqlite3.connect(draft)) as connection:
                    connection.executescript(SCHEMA)
                    for name, value in {"format": FORMAT, **meta}.items():
                        connection.execute("INSERT INTO meta VALUES (?, ?)", (name, _dumps(value)))
                    connection.commit()
                    connection.execute("PRAGMA journal_mode = WAL")
                put_in_place(draft, database)
            except FileExistsError:
                raise StudyExists(f"{folder} already holds a study") from None
            finally:
                draft.unlink(missing_ok=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Store:
        """An existing study."""
        database = folder / DATABASE
        if not database.is_file():
            inside = [path.parent for path in folder.glob(f"*/{DATABASE}")]
            if folder.name == DATABASE and folder.is_file():
                inside = [folder.parent]
            advice = (
                f"did you mean {' or '.join(map(str, sorted(inside)))}?"
                if inside
                else f"`safemargin collect ENV POLICY -o {folder}` makes one"
            )
            raise StudyError(f"there is no study in {folder} (no {DATABASE}); {advice}")
        with disk_faults(folder):
            if database.stat().st_size == 0:  # SQLite would take it for a new one
                raise damaged(folder, "it is not a database")
            if os.access(folder, os.W_OK):
                # Threads may take turns: the explorer answers each request in one of several.
                connection = sqlite3.connect(
                    database, timeout=30, isolation_level=None, check_same_thread=False
                )
                connection.execute("PRAGMA journal_mode = WAL")
                # FULL: a piece reported as finished survives a power cut, not only a kill.
                connection.execute("PRAGMA synchronous = FULL")
            else:
                connection = open_read_only(database, refusal=StudyError)
            store = cls(folder, connection)
            problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            found = store.meta("format")
            entries = {row[0] for row in connection.execute("SELECT name FROM meta")}
        if problems != "ok":
            raise damaged(folder, problems)
        if found != FORMAT:
            raise StudyError(
                f"the study in {folder} has format {found}, this safemargin reads {FORMAT}; "
                "install the version that made it"
            )
        if missing := sorted(set(ENTRIES) - entries):
            raise damaged(folder, f"the entry {missing[0]!r} of its table meta is missing")
        for table, needed in (
            ("moments", "episodes"),
            ("estimates", "moments"),
            ("moments", "moment_proxies"),
        ):
            orphans = store.query(
                f"SELECT phase, episode, life FROM {table} "
                f"EXCEPT SELECT phase, episode, life FROM {needed}"
            )
            if orphans:
                raise damaged(folder, f"rows of {needed} are missing, e.g. for {orphans[0]}")
        return store

    def close(self) -> None:
        """Close the database; the log is folded into the one file."""
        self._connection.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the study for this process; StudyBusy where another one is collecting."""
        with held(self.folder):
            yield

    # -- what the study is ---------------------------------------------------------------------

    def meta(self, name: str) -> Any:
        """A named JSON value, None where there is none."""
        rows = self.query("SELECT value FROM meta WHERE name = ?", name)
        try:
            return json.loads(rows[0][0]) if rows else None
        except json.JSONDecodeError:
            raise damaged(self.folder, f"the entry {name!r} of its table meta is no JSON") from None

    def set_meta(self, name: str, value: Any) -> None:
        """Replace a named JSON value."""
        with self._transaction():
            self.query("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, _dumps(value))

    # -- episodes ------------------------------------------------------------------------------

    def add_episodes(self, episodes: Sequence[Episode], *, seconds: float) -> None:
        """Write the finished episodes of one game; a second copy of them changes nothing."""
        with self._transaction():
            for episode in episodes:
                self._add_episode(episode, seconds=seconds / len(episodes))

    def _add_episode(self, episode: Episode, *, seconds: float) -> None:
        key = astuple(episode.key)
        ended = "cut" if episode.cut else "terminated" if episode.terminated else "truncated"
        self.query(
            "INSERT INTO episodes VALUES (?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
            *key,
            episode.seed,
            episode.opening,
            episode.steps,
            float(episode.rewards.sum()),
            ended,
            episode.fingerprint,
            pack(episode.actions),
            pack(episode.rewards),
            pack(episode.scores),
        )
        for name, values in episode.proxies.items():
            self.query(
                "INSERT INTO episode_proxies VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING",
                *key,
                name,
                pack(values),
            )
        self.query(
            "INSERT INTO costs VALUES (?,?,?,0,?,?,0,0) ON CONFLICT DO NOTHING",
            *key,
            episode.steps,
            seconds,
        )

    def episode_outlines(self) -> dict[EpisodeKey, tuple[int, int, bool]]:
        """For every finished episode: opening, steps, and whether it was cut."""
        rows = self.query(
            "SELECT phase, episode, life, opening, steps, ended = 'cut' FROM episodes "
            "ORDER BY phase, episode, life"
        )
        return {EpisodeKey(*row[:3]): (row[3], row[4], bool(row[5])) for row in rows}

    def drop_games(self, phase: Phase, *, after: int) -> None:
        """Forget the games with higher numbers; none of them may hold a moment."""
        with self._transaction():
            for table in ("episodes", "episode_proxies", "costs"):
                self.query(f"DELETE FROM {table} WHERE phase = ? AND episode > ?", phase, after)

    def actions(self, key: EpisodeKey) -> Array:
        """The recorded actions of one episode."""
        return unpack(self._of_episode("actions", key)[0])

    def episode(self, key: EpisodeKey) -> Episode:
        """One episode, whole."""
        columns = "seed, opening, ended, actions, rewards, scores"
        seed, opening, ended, actions, rewards, scores = self._of_episode(columns, key)
        proxies = self.query(
            "SELECT proxy, proxies FROM episode_proxies "
            "WHERE phase = ? AND episode = ? AND life = ?",
            *astuple(key),
        )
        return Episode(
            key=key,
            seed=seed,
            opening=opening,
            actions=unpack(actions),
            rewards=unpack(rewards),
            scores=unpack(scores),
            proxies={name: unpack(values) for name, values in proxies},
            terminated=ended == "terminated",
            truncated=ended == "truncated",
            cut=ended == "cut",
        )

    def _of_episode(self, columns: str, key: EpisodeKey) -> tuple[Any, ...]:
        rows = self.query(
            f"SELECT {columns} FROM episodes WHERE phase = ? AND episode = ? AND life = ?",
            *astuple(key),
        )
        if not rows:
            raise StudyError(f"the study in {self.folder} has no episode {key}")
        return rows[0]

    # -- moments -------------------------------------------------------------------------------

    def add_moments(self, moments: Iterable[tuple[Moment, Episode]]) -> None:
        """Write moments with every proxy's value there; known ones are left as they are."""
        n_values = self.meta("settings")["n_values"]
        with self._transaction():
            for moment, episode in moments:
                key = astuple(moment.episode)
                self.query(
                    "INSERT INTO moments VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                    *key,
                    moment.step,
                )
                for name, values in episode.proxies.items():
                    at_step = np.atleast_1d(values[moment.step])
                    columns = [0] if values.ndim == 1 else n_values
                    for n, value in zip(columns, at_step, strict=True):
                        self.query(
                            "INSERT INTO moment_proxies VALUES (?,?,?,?,?,?) "
                            "ON CONFLICT DO NOTHING",
                            *key,
                            name,
                            n,
                            float(value),
                        )

    def moments(self) -> list[Moment]:
        """All selected moments, by phase and episode."""
        rows = self.query("SELECT phase, episode, life, step FROM moments ORDER BY 1, 2, 3")
        return [Moment(EpisodeKey(*row[:3]), row[3]) for row in rows]

    # -- estimates -----------------------------------------------------------------------------

    def add_measurement(self, moment: Moment, measurement: Measurement, *, seconds: float) -> None:
        """Write the finished measurement of one (moment, n)."""
        key = astuple(moment.episode)
        estimate = measurement.estimate
        with self._transaction():
            self.query(
                "INSERT INTO estimates VALUES (?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
                *key,
                estimate.n,
                estimate.mean,
                estimate.half_width,
                estimate.trials,
                int(estimate.exact),
                int(estimate.capped),
                estimate.unperturbed,
                pack(measurement.perturbed),
                pack(measurement.unperturbed),
            )
            self.query(
                "INSERT INTO costs VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
                *key,
                estimate.n,
                measurement.steps,
                seconds,
                measurement.wasted,
                measurement.remembered,
            )

    def estimated(self) -> set[tuple[EpisodeKey, int]]:
        """Which (episode, n) are finished."""
        rows = self.query("SELECT phase, episode, life, n FROM estimates")
        return {(EpisodeKey(*row[:3]), row[3]) for row in rows}

    def measurement(self, key: EpisodeKey, n: int) -> Measurement:
        """One finished measurement with its raw returns."""
        rows = self.query(
            "SELECT criticality, half_width, trials, exact, unperturbed, capped, "
            "perturbed_returns, unperturbed_returns, costs.steps, wasted, remembered "
            "FROM estimates JOIN costs USING (phase, episode, life, n) "
            "WHERE phase = ? AND episode = ? AND life = ? AND n = ?",
            *astuple(key),
            n,
        )
        if not rows:
            raise StudyError(f"the study in {self.folder} has no estimate of {key} for n = {n}")
        mean, half_width, trials, exact, unperturbed, capped, raw, raw_unperturbed, *costs = rows[0]
        estimate = Estimate(n, mean, half_width, trials, bool(exact), unperturbed, bool(capped))
        return Measurement(estimate, unpack(raw), unpack(raw_unperturbed), *costs)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of any query."""
        with disk_faults(self.folder):
            return self._connection.execute(sql, values).fetchall()

    # -- plumbing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            raise


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
