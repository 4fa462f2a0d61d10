"""Everything that is read from a study's database; with `store`, the only SQL on studies."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from safemargin.core.records import (
    Array,
    Episode,
    EpisodeKey,
    Estimate,
    Floats,
    Measurement,
    Moment,
    Phase,
)
from safemargin.errors import StudyError
from safemargin.study.blobs import unpack
from safemargin.study.disk_faults import damaged, disk_faults

_OF_EPISODE = "phase = ? AND episode = ? AND life = ?"

_TOTALS = {
    "episodes": "COUNT(*) FROM episodes",
    "chosen_moments": "COUNT(*) FROM moments",
    # Moments with equal proxies are almost certainly the same state reached again.
    "distinct_moments": "COUNT(DISTINCT looks) FROM (SELECT group_concat(value, ' ') AS looks "
    "FROM moment_proxies WHERE proxy <> 'learned' GROUP BY phase, episode, life)",
    "distinct_episodes": "COUNT(DISTINCT fingerprint) FROM moments "
    "JOIN episodes USING (phase, episode, life)",
    "estimates": "COUNT(*) FROM estimates",
    "trials": "IFNULL(SUM(trials), 0) FROM estimates",
    "without_spread": "COUNT(*) FROM estimates WHERE half_width = 0 AND NOT exact",
    "capped": "COUNT(*) FROM estimates WHERE capped",
    "simulator_steps": "IFNULL(SUM(steps), 0) FROM costs",
    "wasted_steps": "IFNULL(SUM(wasted), 0) FROM costs",
    "remembered_states": "IFNULL(MAX(remembered), 0) FROM costs",
    "worker_seconds": "IFNULL(SUM(seconds), 0) FROM costs",
}


class TupleRow(NamedTuple):
    """One row of the view `tuples`: a moment, a proxy and an n."""

    phase: Phase
    episode: int
    life: int
    step: int
    proxy: str
    proxy_value: float
    n: int
    criticality: float
    half_width: float
    trials: int
    exact: int
    capped: int
    unperturbed: float

    @property
    def key(self) -> EpisodeKey:
        return EpisodeKey(self.phase, self.episode, self.life)


class CostRow(NamedTuple):
    """What one finished piece cost: an episode (n = 0), or a moment measured for one n."""

    key: EpisodeKey
    n: int
    steps: int
    seconds: float
    trials: int
    capped: bool


@dataclass(frozen=True, slots=True, eq=False)
class ProxyTrace:
    """One proxy along a recorded episode, with what is needed to place the episode."""

    key: EpisodeKey
    seed: int
    opening: int
    steps: int
    total_reward: float
    ended: str
    """'terminated', 'truncated' or 'cut'."""
    fingerprint: str
    values: Floats  # [steps], or [steps, n] where the proxy depends on n
    moment_step: int | None
    """The step selected for measuring; None where none was selected."""


class StoreReader:
    """The reading half of a `Store`; it needs no lock."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder.absolute()  # still right after the process changes its folder
        self._connection = connection

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with disk_faults(self.folder):
            return self._connection.execute(sql, values).fetchall()

    def version(self) -> tuple[int, int]:
        """Return a value that changes with every change to the database, by whichever process."""
        return self._query("PRAGMA data_version")[0][0], self._connection.total_changes

    def meta(self, name: str) -> Any:
        """Return an entry of the table `meta`, or None if it does not exist."""
        rows = self._query("SELECT value FROM meta WHERE name = ?", name)
        try:
            return json.loads(rows[0][0]) if rows else None
        except json.JSONDecodeError:
            raise damaged(self.folder, f"the entry {name!r} of its table meta is no JSON") from None

    # -- episodes ------------------------------------------------------------------------------

    def episode_outlines(self) -> dict[EpisodeKey, tuple[int, int, bool]]:
        """Return the opening, the steps, and whether it was cut, of every finished episode."""
        rows = self._query(
            "SELECT phase, episode, life, opening, steps, ended = 'cut' FROM episodes "
            "ORDER BY phase, episode, life"
        )
        return {EpisodeKey(*row[:3]): (row[3], row[4], bool(row[5])) for row in rows}

    def fingerprints(self) -> dict[EpisodeKey, str]:
        """Return the fingerprint of every episode; copies of one another share theirs."""
        rows = self._query(
            "SELECT phase, episode, life, fingerprint FROM episodes ORDER BY phase, episode, life"
        )
        return {EpisodeKey(*row[:3]): row[3] for row in rows}

    def actions(self, key: EpisodeKey) -> Array:
        """Return the recorded actions of one episode."""
        return unpack(self._of_episode("actions", key)[0])

    def scores(self, key: EpisodeKey) -> npt.NDArray[np.float32]:
        """Return the recorded scores of one episode, [steps, …]."""
        return unpack(self._of_episode("scores", key)[0])

    def rewards(self, key: EpisodeKey) -> Floats:
        """Return the recorded rewards of one episode."""
        return unpack(self._of_episode("rewards", key)[0])

    def episode(self, key: EpisodeKey) -> Episode:
        """Return one episode with all its arrays."""
        columns = "seed, opening, ended, actions, rewards, scores"
        seed, opening, ended, actions, rewards, scores = self._of_episode(columns, key)
        proxies = self._query(
            f"SELECT proxy, proxies FROM episode_proxies WHERE {_OF_EPISODE} ORDER BY proxy",
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
        rows = self._query(f"SELECT {columns} FROM episodes WHERE {_OF_EPISODE}", *astuple(key))
        if not rows:
            raise StudyError(f"the study in {self.folder} has no episode {key}")
        return rows[0]

    def proxy_traces(self, proxy: str) -> Iterator[ProxyTrace]:
        """Yield one proxy along every episode, by phase, number and life."""
        for *key, seed, opening, steps, total, ended, fingerprint, values, step in self._query(
            "SELECT phase, episode, life, seed, opening, steps, total_reward, ended, fingerprint, "
            "proxies, step FROM episodes "
            "JOIN episode_proxies USING (phase, episode, life) "
            "LEFT JOIN moments USING (phase, episode, life) "
            "WHERE proxy = ? ORDER BY phase, episode, life",
            proxy,
        ):
            yield ProxyTrace(
                key=EpisodeKey(*key),
                seed=seed,
                opening=opening,
                steps=steps,
                total_reward=total,
                ended=ended,
                fingerprint=fingerprint,
                values=unpack(values),
                moment_step=step,
            )

    # -- moments and estimates -----------------------------------------------------------------

    def moments(self) -> list[Moment]:
        """Return all selected moments, by phase, number and life."""
        rows = self._query("SELECT phase, episode, life, step FROM moments ORDER BY 1, 2, 3")
        return [Moment(EpisodeKey(*row[:3]), row[3]) for row in rows]

    def has_features_table(self) -> bool:
        """Whether the study was made by a version that records features."""
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'moment_features'"
        return bool(self._query(sql))

    def features(self) -> dict[EpisodeKey, npt.NDArray[np.float32]]:
        """Return the hidden layer before each moment that was looked at, [lags, width]."""
        if not self.has_features_table():
            return {}
        rows = self._query(
            "SELECT phase, episode, life, hidden FROM moment_features ORDER BY 1, 2, 3"
        )
        return {EpisodeKey(*row[:3]): unpack(row[3]) for row in rows}

    def looks_at_n(self, proxy: str) -> bool:
        """Return whether a proxy has one value for each n."""
        sql = "SELECT 1 FROM moment_proxies WHERE proxy = ? AND n > 0 LIMIT 1"
        return bool(self._query(sql, proxy))

    def tuple_rows(self, proxy: str | None = None) -> list[TupleRow]:
        """Return every moment, proxy (or only the one named) and n, in this order."""
        chosen, values = ("", ()) if proxy is None else ("WHERE proxy = ?", (proxy,))
        rows = self._query(
            f"SELECT {', '.join(TupleRow._fields)} FROM tuples {chosen} "
            "ORDER BY phase, episode, life, proxy, n",
            *values,
        )
        return [TupleRow(*row) for row in rows]

    def estimated(self) -> set[tuple[EpisodeKey, int]]:
        """Return which (episode, n) are finished."""
        rows = self._query("SELECT phase, episode, life, n FROM estimates")
        return {(EpisodeKey(*row[:3]), row[3]) for row in rows}

    def measurements(self, key: EpisodeKey) -> list[Measurement]:
        """Return the finished measurements of an episode's moment, by increasing n."""
        found = []
        for n, mean, half_width, trials, exact, unperturbed, capped, *rest in self._query(
            "SELECT n, criticality, half_width, trials, exact, unperturbed, capped, "
            "perturbed_returns, unperturbed_returns, costs.steps, wasted, remembered "
            "FROM estimates JOIN costs USING (phase, episode, life, n) "
            f"WHERE {_OF_EPISODE} ORDER BY n",
            *astuple(key),
        ):
            estimate = Estimate(n, mean, half_width, trials, bool(exact), unperturbed, bool(capped))
            returns, unperturbed_returns, *costs = rest
            found.append(
                Measurement(estimate, unpack(returns), unpack(unperturbed_returns), *costs)
            )
        return found

    def trial_returns(self) -> Iterator[tuple[EpisodeKey, int, float, Floats]]:
        """Yield episode, n, mean unperturbed return and perturbed returns of every estimate."""
        for *key, n, unperturbed, returns in self._query(
            "SELECT phase, episode, life, n, unperturbed, perturbed_returns FROM estimates"
        ):
            yield EpisodeKey(*key), n, unperturbed, unpack(returns)

    # -- counts and costs ----------------------------------------------------------------------

    def totals(self) -> dict[str, Any]:
        """Return counts over the whole study, by the names of the fields of `Status`."""
        return {name: self._query(f"SELECT {count}")[0][0] for name, count in _TOTALS.items()}

    def measured_moments(self, estimates_per_moment: int) -> dict[str, int]:
        """Return phase → moments that have this many estimates."""
        return dict(
            self._query(
                "SELECT phase, COUNT(*) FROM (SELECT phase FROM estimates "
                "GROUP BY phase, episode, life HAVING COUNT(*) = ?) GROUP BY phase",
                estimates_per_moment,
            )
        )

    def costs(self) -> list[CostRow]:
        """Return what every finished piece cost."""
        rows = self._query(
            "SELECT phase, episode, life, n, costs.steps, seconds, IFNULL(trials, 0), "
            "IFNULL(capped, 0) FROM costs LEFT JOIN estimates USING (phase, episode, life, n)"
        )
        return [
            CostRow(EpisodeKey(*key), n, steps, seconds, trials, bool(capped))
            for *key, n, steps, seconds, trials, capped in rows
        ]

    def row_sizes(self) -> Iterator[tuple[EpisodeKey, int, int]]:
        """Yield the piece (episode and n) and the bytes of arrays of every row of the tables."""
        for *key, n, size in self._query(
            "SELECT phase, episode, life, 0, LENGTH(proxies) FROM episode_proxies UNION ALL SELECT "
            "phase, episode, life, 0, LENGTH(actions) + LENGTH(rewards) + LENGTH(scores) "
            "FROM episodes UNION ALL SELECT phase, episode, life, n, "
            "LENGTH(perturbed_returns) + LENGTH(unperturbed_returns) FROM estimates "
            "UNION ALL SELECT phase, episode, life, n, 0 FROM costs "
            "UNION ALL SELECT phase, episode, life, 0, 0 FROM moments "
            "UNION ALL SELECT phase, episode, life, 0, 0 FROM moment_proxies"
        ):
            yield EpisodeKey(*key), n, size
