"""A study on disk: one folder with one SQLite database.

Pieces are written as they finish, those that finish together in one transaction.

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
from pathlib import Path
from typing import Any

from safemargin.core.read_only import open_read_only
from safemargin.core.records import (
    Episode,
    EpisodeKey,
    Floats,
    Measurement,
    Moment,
    MomentFeatures,
    Phase,
)
from safemargin.errors import StudyError, StudyExists
from safemargin.margins.learned.probe import EXPLANATIONS, LEARNED, is_learned
from safemargin.study.blobs import pack
from safemargin.study.disk_faults import damaged, disk_faults
from safemargin.study.folders import held, put_in_place
from safemargin.study.reading import StoreReader, proxies_at
from safemargin.study.schema import (
    ENTRIES,
    FEATURES_TABLE,
    FORMAT,
    MORE_TABLES,
    OPTIONAL_ENTRIES,
    PROXY_REFERENCES,
    REFERENCES,
    SCHEMA,
    conditions,
    has_form,
    views,
)

DATABASE = "study.db"
DREW = "drew"
"""The entry with the games that drew random numbers, while the study counts as deterministic."""


class Store(StoreReader):
    """The database of one study. Reading needs no lock; only one process at a time may write."""

    @classmethod
    def create(cls, folder: Path, meta: Mapping[str, Any]) -> Store:
        """Make a new, empty study; StudyExists if the folder holds one by then."""
        database = folder / DATABASE
        with disk_faults(folder):
            if database.exists():
                raise StudyExists(f"{folder} already holds a study")
            folder.mkdir(parents=True, exist_ok=True)
            # Each process builds a draft of its own, so that a study appears whole or not at all.
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
    def open(cls, folder: Path, about: int = 0) -> Store:
        """Open an existing study, to read and write what it holds `about` the first mistakes and
        losses that it measures, or about one of the others."""
        database = folder / DATABASE
        if not database.is_file():
            raise _no_study(folder)
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
        if problems != "ok":
            raise damaged(folder, problems.splitlines()[-1])  # older SQLite puts a title first
        if found != FORMAT:
            raise StudyError(
                f"the study in {folder} has format {found}, this safemargin reads {FORMAT}; "
                "install the version that made it"
            )
        store._check_entries()
        store._check_rows()
        if about:
            store._look_at(about)
        return store

    def _look_at(self, about: int) -> None:
        """Read and write what the study holds about other mistakes or losses than the first."""
        self.about = about
        with disk_faults(self.folder):
            self._connection.executescript(views(about))
        self._check_entries()
        self._check_references()

    def add_pair(self, perturb: str, signal: str, identity: str | None) -> int:
        """Have the study measure these mistakes and losses, too; return their number.

        `identity` is that of the policy or function behind the perturbation.
        """
        with self._transaction():
            pairs = self.measured_pairs()
            if (perturb, signal) in pairs:
                return pairs.index((perturb, signal))
            for statement in MORE_TABLES.split(";")[:-1]:  # a script would end the transaction
                self._query(statement)
            more = [{"perturb": one, "signal": other} for one, other in pairs[1:]]
            self._put("more", [*more, {"perturb": perturb, "signal": signal}])
            if identity is not None:
                self._put(f"perturbation#{len(pairs)}", {"identity": identity})
            return len(pairs)

    def _check_entries(self) -> None:
        """Raise StudyCorrupt where an entry of the table `meta` is missing or has another form."""
        for name, form in {**ENTRIES, **OPTIONAL_ENTRIES}.items():
            value = self.meta(name)
            if value is None and name in ENTRIES:
                raise damaged(self.folder, f"the entry {name!r} of its table meta is missing")
            if value is not None and not has_form(value, form):
                raise damaged(self.folder, f"the entry {name!r} of its table meta is {value!r:.60}")
        if self.meta("selection_proxy") not in self.meta("proxies"):
            raise damaged(self.folder, "its 'selection_proxy' is not one of its proxies")

    def _check_rows(self) -> None:
        """Raise StudyCorrupt where rows are not as `schema` says."""
        tables = {name for (name,) in self._query("SELECT name FROM sqlite_master")}
        for table, sound in conditions().items():
            if table not in tables and table.startswith("more_"):
                continue
            self._refuse(
                f"a row of {table} is none that safemargin wrote",
                f"SELECT * FROM {table} WHERE NOT ({sound})",
            )
        self._refuse(
            "a moment lies outside its episode",
            "SELECT * FROM moments JOIN episodes USING (phase, episode, life) "
            "WHERE step NOT BETWEEN opening AND steps - 1",
        )
        self._check_references()

    def _check_references(self) -> None:
        for table, needed, columns in REFERENCES:
            self._refuse(
                f"rows of {needed} are missing",
                f"SELECT {columns} FROM {table} EXCEPT SELECT {columns} FROM {needed}",
            )
        for table, needed, columns in PROXY_REFERENCES:
            for proxy in set(self.meta("proxies")) - {LEARNED}:  # its rows come later
                self._refuse(
                    f"rows of {needed} are missing",
                    f"SELECT {columns} FROM {table} "
                    f"EXCEPT SELECT {columns} FROM {needed} WHERE proxy = ?",
                    proxy,
                )

    def _refuse(self, what: str, sql: str, *values: Any) -> None:
        """Raise StudyCorrupt if a query finds a row that has the columns of an episode's key."""
        if rows := self._query(f"SELECT phase, episode, life FROM ({sql}) LIMIT 1", *values):
            raise damaged(self.folder, f"{what}, e.g. for {rows[0]}")

    def close(self) -> None:
        """Close the database; its write-ahead log is merged into the one file."""
        self._connection.close()

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Lock the study for this process; StudyBusy if another one is collecting."""
        return held(self.folder)

    # -- writing -------------------------------------------------------------------------------

    def set_meta(self, name: str, value: Any) -> None:
        """Set an entry of the table `meta` to a JSON value."""
        with self._transaction():
            self._put(name, value)

    def _put(self, name: str, value: Any) -> None:
        sql = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        self._query(sql, self._entry(name), _dumps(value))

    def correct_diagnosis(self, diagnosis: Mapping[str, Any]) -> None:
        """Replace the diagnosis, and delete all that was measured under the former one."""
        with self._transaction():
            self._put("diagnosis", dict(diagnosis))
            self._query("DELETE FROM main.estimates")
            self._query("DELETE FROM main.costs WHERE n > 0")
            if len(self.measured_pairs()) > 1:
                self._query("DELETE FROM main.more_estimates")
                self._query("DELETE FROM main.more_costs")

    def drew(self) -> list[EpisodeKey]:
        """Return the first episodes of the games that drew random numbers while they ran."""
        return [EpisodeKey(*game) for game in self.meta(DREW) or ()]

    def add_episodes(self, episodes: Sequence[Episode], *, seconds: float) -> None:
        """Write the finished episodes of one game; writing them again changes nothing."""
        drew = any(episode.drew for episode in episodes)
        with self._transaction():
            if drew and self.meta("diagnosis")["environment_deterministic"]:
                games = [*self.drew(), episodes[0].key]
                self._put(DREW, [(key.phase, key.index) for key in games])
            for episode in episodes:
                self._add_episode(episode, seconds=seconds / len(episodes))

    def _add_episode(self, episode: Episode, *, seconds: float) -> None:
        key = episode.key.row
        self._insert(
            "episodes",
            *key,
            episode.seed,
            episode.opening,
            episode.steps,
            float(episode.rewards.sum()),
            episode.ended,
            episode.fingerprint,
            pack(episode.actions),
            pack(episode.rewards),
            pack(episode.scores),
        )
        for name, values in episode.proxies.items():
            self._insert("episode_proxies", *key, name, pack(values))
        n = wasted = remembered = 0
        self._insert("costs", *key, n, episode.steps, seconds, wasted, remembered)

    def drop_games(self, phase: Phase, *, after: int) -> None:
        """Delete the games with higher numbers; none of them may hold a moment."""
        with self._transaction():
            tables = ["episodes", "episode_proxies", "costs"]
            tables += ["more_episode_proxies"] * (len(self.measured_pairs()) > 1)
            for table in tables:
                of_games = "WHERE phase = ? AND episode > ?"
                self._query(f"DELETE FROM main.{table} {of_games}", phase, after)

    def add_moments(self, moments: Iterable[tuple[Moment, Episode]]) -> None:
        """Write moments with the value of every proxy; known moments are left as they are."""
        n_values = self.meta("settings")["n_values"]
        with self._transaction():
            for moment, episode in moments:
                key = moment.episode.row
                self._insert("moments", *key, moment.step)
                for name, values in episode.proxies.items():
                    if is_learned(name):  # its models have seen the episode; see `set_learned`
                        continue
                    for n, value in proxies_at(values, moment.step, n_values).items():
                        self._insert("moment_proxies", *key, name, n, value)

    def add_features(self, features: MomentFeatures) -> None:
        """Write the policy's hidden layer at a moment."""
        with self._transaction():
            if not self.has_features_table():  # a study made by an earlier version
                self._query(FEATURES_TABLE)
            key = features.moment.episode.row
            self._insert("moment_features", *key, pack(features.hidden))

    def set_learned(
        self, learned: Any, values: Mapping[EpisodeKey, float], proxy: str = LEARNED
    ) -> None:
        """Replace a learned proxy of the study: what describes it, and its value at each moment.

        The values come from models that have not seen the moment; None removes the proxy. Learned
        rankings are not among the study's `proxies`: no margins are fitted to them.
        """
        with self._transaction():
            for table in ("moment_proxies", "episode_proxies"):
                more, only = ("more_", f"AND about = {self.about}") if self.about else ("", "")
                self._query(f"DELETE FROM main.{more}{table} WHERE proxy = ? {only}", proxy)
            for key, value in values.items():
                self._insert_own("moment_proxies", *key.row, proxy, 0, value)
            if proxy == LEARNED and not self.about:
                names = [name for name in self.meta("proxies") if name != LEARNED]
                self._put("proxies", names + [LEARNED] * (learned is not None))
            self._put(proxy, learned)

    def add_trace(self, key: EpisodeKey, proxy: str, values: Floats) -> None:
        """Write what was computed afterwards along one episode, [steps], unless it is there."""
        with self._transaction():
            own = is_learned(proxy) and proxy not in EXPLANATIONS.values()
            insert = self._insert_own if own else self._insert
            insert("episode_proxies", *key.row, proxy, pack(values))

    def drop_trace(self, proxy: str) -> None:
        """Delete what was computed along the episodes under this name."""
        with self._transaction():
            self._query("DELETE FROM main.episode_proxies WHERE proxy = ?", proxy)

    def add_measurement(self, moment: Moment, measurement: Measurement, *, seconds: float) -> None:
        """Write the finished measurement of one (moment, n)."""
        estimate = measurement.estimate
        piece = (*moment.episode.row, estimate.n)
        with self._transaction():
            self._insert_own(
                "estimates",
                *piece,
                estimate.mean,
                estimate.half_width,
                estimate.trials,
                int(estimate.exact),
                int(estimate.capped),
                estimate.unperturbed,
                pack(measurement.perturbed),
                pack(measurement.unperturbed),
            )
            spent = (measurement.steps, seconds, measurement.wasted, measurement.remembered)
            self._insert_own("costs", *piece, *spent)

    def _insert_own(self, table: str, *values: Any) -> None:
        """Write a row that belongs to the mistakes and losses that this store is about."""
        if self.about:
            self._insert(f"more_{table}", self.about, *values)
        else:
            self._insert(table, *values)

    def _insert(self, table: str, *values: Any) -> None:
        """Write a row unless one with its key exists."""
        marks = ",".join("?" * len(values))
        self._query(f"INSERT INTO main.{table} VALUES ({marks}) ON CONFLICT DO NOTHING", *values)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write all that is written inside in one transaction, which waits for the disk once."""
        with self._transaction():
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._connection.in_transaction:
            yield
            return
        self._query("BEGIN IMMEDIATE")
        try:
            yield
            self._query("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            raise


def _no_study(folder: Path) -> StudyError:
    """Say that there is no study in a folder, and where there is one nearby."""
    inside = [path.parent for path in folder.glob(f"*/{DATABASE}")]
    if folder.name == DATABASE and folder.is_file():
        inside = [folder.parent]
    if inside:
        advice = f"did you mean {' or '.join(map(str, sorted(inside)))}?"
    elif folder.is_file():
        advice = (
            "that is a file; name the folder that `safemargin collect ENV POLICY -o FOLDER` made"
        )
    else:
        advice = f"`safemargin collect ENV POLICY -o {folder}` makes one"
    return StudyError(f"there is no study in {folder} (no {DATABASE}); {advice}")


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
