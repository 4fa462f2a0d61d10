"""Everything that is read from a study's database; with `store`, the only SQL on studies."""

from __future__ import annotations

import collections
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from safemargin.core.measured import RANDOM, REWARD
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
from safemargin.core.settings import Settings
from safemargin.errors import StudyError, StudyIncomplete
from safemargin.margins.learned.probe import EXPLANATIONS, LEARNED, RANKINGS, is_learned
from safemargin.study.blobs import unpack
from safemargin.study.disk_faults import damaged, disk_faults
from safemargin.study.evidence import contradiction
from safemargin.study.schema import OWN_ENTRIES

_OF_EPISODE = "phase = ? AND episode = ? AND life = ?"

_TOTALS = {
    "episodes": "COUNT(*) FROM episodes",
    "chosen_moments": "COUNT(*) FROM moments",
    # Moments with equal proxies are almost certainly the same state reached again.
    "distinct_moments": "COUNT(DISTINCT looks) FROM (SELECT group_concat(value, ' ') AS looks "
    "FROM moment_proxies WHERE proxy NOT IN ('learned', 'learned-regret', 'learned-stakes') "
    "GROUP BY phase, episode, life)",
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


@dataclass(frozen=True, slots=True, eq=False)
class ProxyTrace:
    """One proxy along a recorded episode, with what is needed to place the episode."""

    key: EpisodeKey
    values: Floats  # [steps], or [steps, n] where the proxy depends on n
    moment_step: int | None
    """The step selected for measuring; None where none was selected."""
    steps: int
    seed: int
    opening: int
    total_reward: float
    ended: str
    """'terminated', 'truncated' or 'cut'."""
    fingerprint: str


def proxies_at(values: Floats, step: int, n_values: Sequence[int]) -> dict[int, float]:
    """Return n → the proxy at a step; its only n is 0 where the proxy does not look at n."""
    columns = [0] if values.ndim == 1 else n_values
    return dict(zip(columns, np.atleast_1d(values[step]).tolist(), strict=False))


class StoreReader:
    """The reading half of a `Store`; it needs no lock."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder.absolute()  # still right after the process changes its folder
        self._connection = connection
        self.about = 0
        """Which of its mistakes and losses it reads: 0 the first, else one of the entry `more`."""
        self._proven: dict[str, tuple[int, int]] = {}
        """What agreed with the raw data (a proxy, or '' for the estimates) in which version."""

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with disk_faults(self.folder):
            return self._connection.execute(sql, values).fetchall()

    def _rows(self, sql: str, *values: Any) -> Iterator[tuple[EpisodeKey, list[Any]]]:
        """Yield the episode that the first columns of each row name, and the other columns."""
        for phase, index, life, *others in self._query(sql, *values):
            yield EpisodeKey(phase, index, life), others

    def version(self) -> tuple[int, int]:
        """Return a value that changes with every change to the database, by whichever process."""
        return self._query("PRAGMA data_version")[0][0], self._connection.total_changes

    def meta(self, name: str) -> Any:
        """Return an entry of the table `meta`, or None if it does not exist.

        Where it reads other mistakes or losses than the first, the entry is theirs.
        """
        rows = self._query("SELECT value FROM meta WHERE name = ?", self._entry(name))
        try:
            found = json.loads(rows[0][0]) if rows else None
        except (RecursionError, TypeError, ValueError):
            raise damaged(
                self.folder, f"the entry {name!r} of its table meta is not JSON"
            ) from None
        if self.about and name == "settings" and isinstance(found, dict):
            perturb, signal = self.measured_pairs()[self.about]
            return {**found, "perturb": perturb, "signal": signal}
        if self.about and name == "proxies" and isinstance(found, list):
            of_first = [each for each in found if each != LEARNED]
            return of_first + [LEARNED] * (self.meta(LEARNED) is not None)
        return found

    def _entry(self, name: str) -> str:
        return f"{name}#{self.about}" if self.about and name in OWN_ENTRIES else name

    def measured_pairs(self) -> list[tuple[str, str]]:
        """Return every perturbation and signal of the study, as written, the first ones first."""
        settings = json.loads(self._query("SELECT value FROM meta WHERE name = 'settings'")[0][0])
        first = settings.get("perturb", RANDOM), settings.get("signal", REWARD)
        rows = self._query("SELECT value FROM meta WHERE name = 'more'")
        more = json.loads(rows[0][0]) if rows else []
        return [first, *((each["perturb"], each["signal"]) for each in more)]

    def settings(self) -> Settings:
        """Return the settings that the study was made with."""
        stored = self.meta("settings")
        try:
            for name, value in stored.items():
                number = isinstance(getattr(Settings, name, None), float | int)
                if number and not isinstance(value, float | int):
                    raise TypeError(f"{name} is {value!r:.40}")
            if "n_values" not in stored:  # the default would be other ones
                raise TypeError("n_values is missing")
            return Settings.from_mapping(stored)
        except (ArithmeticError, TypeError) as error:
            what = f"the entry 'settings' of its table meta: {error}"
            raise damaged(self.folder, what) from error

    # -- episodes ------------------------------------------------------------------------------

    def episode_outlines(self) -> dict[EpisodeKey, tuple[int, int, bool]]:
        """Return the opening, the steps, and whether it was cut, of every finished episode."""
        rows = self._rows(
            "SELECT phase, episode, life, opening, steps, ended = 'cut' FROM episodes "
            "ORDER BY phase, episode, life"
        )
        return {key: (opening, steps, bool(cut)) for key, (opening, steps, cut) in rows}

    def fingerprints(self) -> dict[EpisodeKey, str]:
        """Return the fingerprint of every episode; copies of one another share theirs."""
        rows = self._rows("SELECT phase, episode, life, fingerprint FROM episodes ORDER BY 1, 2, 3")
        return {key: fingerprint for key, (fingerprint,) in rows}

    def actions(self, key: EpisodeKey) -> Array:
        """Return the recorded actions of one episode."""
        return self._array("actions", key)

    def scores(self, key: EpisodeKey) -> npt.NDArray[np.float32]:
        """Return the recorded scores of one episode, [steps, …]."""
        return self._array("scores", key)

    def rewards(self, key: EpisodeKey) -> Floats:
        """Return the recorded rewards of one episode."""
        return self._array("rewards", key)

    def episode(self, key: EpisodeKey) -> Episode:
        """Return one episode with all its arrays."""
        seed, opening, steps, ended = self._of_episode("seed, opening, steps, ended", key)
        proxies = self._query(
            f"SELECT proxy, proxies FROM episode_proxies WHERE {_OF_EPISODE} ORDER BY proxy",
            *key.row,
        )
        return Episode(
            key=key,
            seed=seed,
            opening=opening,
            actions=self._array("actions", key),
            rewards=self._array("rewards", key),
            scores=self._array("scores", key),
            proxies={name: unpack(values, rows=(steps,), of=key) for name, values in proxies},
            terminated=ended == "terminated",
            truncated=ended == "truncated",
            cut=ended == "cut",
        )

    def _array(self, column: str, key: EpisodeKey) -> Array:
        steps, array = self._of_episode(f"steps, {column}", key)
        return unpack(array, rows=(steps,), of=key)

    def _of_episode(self, columns: str, key: EpisodeKey) -> tuple[Any, ...]:
        rows = self._query(f"SELECT {columns} FROM episodes WHERE {_OF_EPISODE}", *key.row)
        if not rows:
            raise StudyError(f"the study in {self.folder} has no episode {key}")
        return rows[0]

    def untraced(self, proxy: str) -> list[EpisodeKey]:
        """Return the episodes along which a proxy is not recorded."""
        sql = "SELECT phase, episode, life FROM episodes EXCEPT "
        sql += "SELECT phase, episode, life FROM episode_proxies WHERE proxy = ? ORDER BY 1, 2, 3"
        return [key for key, _ in self._rows(sql, proxy)]

    def proxy_traces(self, proxy: str) -> Iterator[ProxyTrace]:
        """Yield one proxy along every episode, by phase, number and life."""
        if is_learned(proxy) and (left := self.untraced(proxy)):
            targets = (*RANKINGS.items(), *EXPLANATIONS.items())
            target = "".join(f" --target {name}" for name, of in targets if of == proxy)
            raise StudyIncomplete(
                f"the {proxy.replace('-', ' ')} proxy is not recorded along {len(left):,} episodes "
                f"of the study in {self.folder}; run `safemargin learn {self.folder}{target}` "
                "(without --no-traces)"
            )
        for key, (values, step, steps, *others) in self._rows(
            "SELECT phase, episode, life, proxies, step, steps, seed, opening, total_reward, "
            "ended, fingerprint FROM episodes "
            "JOIN episode_proxies USING (phase, episode, life) "
            "LEFT JOIN moments USING (phase, episode, life) "
            "WHERE proxy = ? ORDER BY phase, episode, life",
            proxy,
        ):
            yield ProxyTrace(key, unpack(values, rows=(steps,), of=key), step, steps, *others)

    # -- moments and estimates -----------------------------------------------------------------

    def moments(self) -> list[Moment]:
        """Return all selected moments, by phase, number and life."""
        rows = self._rows("SELECT phase, episode, life, step FROM moments ORDER BY 1, 2, 3")
        return [Moment(key, step) for key, (step,) in rows]

    def has_features_table(self) -> bool:
        """Whether the study was made by a version that records features."""
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'moment_features'"
        return bool(self._query(sql))

    def features(self) -> dict[EpisodeKey, npt.NDArray[np.float32]]:
        """Return the hidden layer before each moment that was looked at, [lags, width]."""
        if not self.has_features_table():
            return {}
        sql = "SELECT phase, episode, life, hidden FROM moment_features ORDER BY 1, 2, 3"
        return {key: unpack(hidden) for key, (hidden,) in self._rows(sql)}

    def looks_at_n(self, proxy: str) -> bool:
        """Return whether a proxy has one value for each n."""
        sql = "SELECT 1 FROM moment_proxies WHERE proxy = ? AND n > 0 LIMIT 1"
        return bool(self._query(sql, proxy))

    def tuple_rows(self, proxy: str | None = None) -> list[TupleRow]:
        """Return every moment, proxy (or only the one named) and n, in this order."""
        self._prove(self.meta("proxies") if proxy is None else [proxy])
        chosen, values = ("", ()) if proxy is None else ("WHERE proxy = ?", (proxy,))
        rows = self._query(
            f"SELECT {', '.join(TupleRow._fields)} FROM tuples {chosen} "
            "ORDER BY phase, episode, life, proxy, n",
            *values,
        )
        return [TupleRow(*row) for row in rows]

    def estimated(self) -> set[tuple[EpisodeKey, int]]:
        """Return which (episode, n) are finished."""
        rows = self._rows("SELECT phase, episode, life, n FROM estimates")
        return {(key, n) for key, (n,) in rows}

    def measurements(self, key: EpisodeKey) -> list[Measurement]:
        """Return the finished measurements of an episode's moment, by increasing n."""
        found = self.all_measurements(f"WHERE {_OF_EPISODE}", *key.row)
        return [measurement for _, measurement in found]

    def all_measurements(
        self, chosen: str = "", *values: Any
    ) -> Iterator[tuple[EpisodeKey, Measurement]]:
        """Yield every finished measurement by phase, number, life and n.

        StudyCorrupt if an estimate differs from what its returns give. `chosen` is a condition.
        """
        settings, version = self.settings(), self.version()
        proven = self._proven.get("") == version
        for key, (n, mean, width, trials, exact, unperturbed, capped, *rest) in self._rows(
            "SELECT phase, episode, life, n, criticality, half_width, trials, exact, unperturbed, "
            "capped, perturbed_returns, unperturbed_returns, costs.steps, wasted, remembered "
            f"FROM estimates JOIN costs USING (phase, episode, life, n) {chosen} "
            "ORDER BY phase, episode, life, n",
            *values,
        ):
            name = f"{key}, n = {n}"
            estimate = Estimate(n, mean, width, trials, bool(exact), unperturbed, bool(capped))
            perturbed_returns, unperturbed_returns, *costs = rest
            measurement = Measurement(
                estimate,
                unpack(perturbed_returns, rows=(trials,), of=name),
                unpack(unperturbed_returns, rows=(1, trials), of=name),
                *costs,
            )
            if not proven and (wrong := contradiction(measurement, settings)) is not None:
                raise damaged(self.folder, f"the estimate of {name}: {wrong}")
            yield key, measurement
        if not chosen:
            self._proven[""] = version

    def _prove(self, proxies: Sequence[str]) -> None:
        """Raise StudyCorrupt if the estimates or the moments' proxies differ from the raw data."""
        version = self.version()
        for name in ("", *proxies):
            # Learned values come from models that have not seen the moment, unlike the traces.
            if is_learned(name) or self._proven.get(name) == version:
                continue
            if name:
                self._prove_proxy(name)
            else:
                collections.deque(self.all_measurements(), maxlen=0)
            self._proven[name] = version

    def _prove_proxy(self, proxy: str) -> None:
        """Raise StudyCorrupt if a moment's proxy is not the one recorded at its step."""
        said: dict[EpisodeKey, dict[int, float]] = {}
        sql = "SELECT phase, episode, life, n, value FROM moment_proxies WHERE proxy = ?"
        for key, (n, value) in self._rows(sql, proxy):
            said.setdefault(key, {})[n] = value
        n_values = self.settings().n_values
        for trace in self.proxy_traces(proxy):
            step = trace.moment_step
            if step is not None and said[trace.key] != proxies_at(trace.values, step, n_values):
                what = f"the {proxy} of {trace.key} is not the one recorded at step {step}"
                raise damaged(self.folder, what)

    # -- counts and costs ----------------------------------------------------------------------

    def totals(self) -> dict[str, Any]:
        """Return counts over the whole study, by the names of the fields of `Status`."""
        return {name: self._query(f"SELECT {count}")[0][0] for name, count in _TOTALS.items()}

    def measured_moments(self, estimates_per_moment: int) -> dict[str, int]:
        """Return phase → moments that have this many estimates."""
        sql = "SELECT phase, COUNT(*) FROM (SELECT phase FROM estimates "
        sql += "GROUP BY phase, episode, life HAVING COUNT(*) = ?) GROUP BY phase"
        return dict(self._query(sql, estimates_per_moment))

    def costs(self) -> Iterator[tuple[tuple[EpisodeKey, int], tuple[int, float, int, bool]]]:
        """Yield every piece, (episode, n), with its steps, seconds, trials, and if it was capped.

        The piece of n = 0 is the episode itself.
        """
        for key, (n, steps, seconds, trials, capped) in self._rows(
            "SELECT phase, episode, life, n, costs.steps, seconds, IFNULL(trials, 0), "
            "IFNULL(capped, 0) FROM costs JOIN episodes USING (phase, episode, life) "
            "LEFT JOIN estimates USING (phase, episode, life, n)"
        ):
            yield (key, n), (steps, seconds, trials, bool(capped))

    def row_sizes(self) -> Iterator[tuple[EpisodeKey, int, int]]:
        """Yield the piece (episode and n) and the bytes of arrays of every row of the tables."""
        for key, (n, size) in self._rows(
            "SELECT phase, episode, life, 0, LENGTH(proxies) FROM episode_proxies UNION ALL SELECT "
            "phase, episode, life, 0, LENGTH(actions) + LENGTH(rewards) + LENGTH(scores) "
            "FROM episodes UNION ALL SELECT phase, episode, life, n, "
            "LENGTH(perturbed_returns) + LENGTH(unperturbed_returns) FROM estimates "
            "UNION ALL SELECT phase, episode, life, n, 0 FROM costs "
            "UNION ALL SELECT phase, episode, life, 0, 0 FROM moments "
            "UNION ALL SELECT phase, episode, life, 0, 0 FROM moment_proxies"
        ):
            yield key, n, size
