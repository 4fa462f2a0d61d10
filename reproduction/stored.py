"""The stored studies of the reproduction: tuples and steps, read without simulating anything."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as parquet

from safemargin.cli.paper_studies import ABOUT_FILE, PAPER_STUDIES, STEPS_FILE, TUPLES_FILE
from safemargin.core.files import written_whole
from safemargin.core.records import Floats, Tuples
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.fitting import margins_from_sample
from safemargin.margins.lookup import Margins

Columns = dict[str, npt.NDArray[Any]]

LAST_CHANCES_FILE = "last_chances.json"
NEEDED = ("proxies", "default_proxy", "settings", "policy", "environment", "minimum_bandwidth")


class Refused(Exception):
    """What was asked for is missing, incomplete or does not match."""


@dataclass(frozen=True)
class Life:
    """One episode after its opening."""

    game: int
    number: int
    """Of the life in its game."""
    rewards: Floats  # [steps]
    proxies: dict[str, Floats]  # name → [steps]
    died: bool

    def until(self, last: int) -> Life:
        """Return the life up to a decision, which is counted back from the end as 1, 2, …"""
        kept = slice(len(self.rewards) - last + 1)
        proxies = {name: values[kept] for name, values in self.proxies.items()}
        return replace(self, rewards=self.rewards[kept], proxies=proxies)


@dataclass(frozen=True)
class StoredStudy:
    """What `safemargin reproduce` kept of one study."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """The agent, the settings, the counts and the cost of the study."""
        return read_json(self.folder / ABOUT_FILE, *NEEDED)

    @property
    def proxies(self) -> list[str]:
        return list(self.about["proxies"])

    @property
    def default_proxy(self) -> str:
        return str(self.about["default_proxy"])

    @cached_property
    def _tuples(self) -> Columns:
        return _read(self.folder / TUPLES_FILE)

    def tuples(self, proxy: str | None = None) -> Tuples:
        """Return the moments that are measured for every n, as `Study.tuples` gives them."""
        name = proxy or self.default_proxy
        chosen = self._tuples["proxy"] == name
        columns = {key: values[chosen] for key, values in self._tuples.items()}
        n_values = tuple(int(n) for n in np.unique(columns["n"]))
        keys = np.stack([columns[key] for key in ("phase", "episode", "life")], axis=1).astype(str)
        _, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        whole = (counts == len(n_values))[inverse.reshape(-1)]
        columns = {key: values[whole] for key, values in columns.items()}
        order = np.lexsort([columns[key] for key in ("n", "life", "episode", "phase")]).reshape(
            -1, len(n_values)
        )  # [moments, n]
        once = order[:, 0]
        return Tuples(
            phases=columns["phase"][once].astype(np.str_),
            indices=columns["episode"][once],
            lives=columns["life"][once],
            steps=columns["step"][once],
            proxies=columns["proxy_value"][once],
            criticalities=columns["criticality"][order],
            half_widths=columns["half_width"][order],
            trials=columns["trials"][order],
            n_values=n_values,
            proxy=name,
            groups=columns["group"][once],
        )

    @cached_property
    def lives(self) -> list[Life]:
        """The kept natural episodes, in the order of their games and lives."""
        path = self.folder / STEPS_FILE
        if not path.exists():
            kept = [name for name, paper in PAPER_STUDIES.items() if paper.episodes_kept]
            kept_of = f"episodes are kept of {' and '.join(kept)} alone"
            raise Refused(f"{path} is missing or damaged; {kept_of}")
        steps = _read(path)
        keys = np.stack([steps["episode"], steps["life"]], axis=1)
        found = []
        for key in np.unique(keys, axis=0):
            rows = np.flatnonzero((keys == key).all(axis=1) & ~steps["opening"])
            if len(rows):
                found.append(
                    Life(
                        game=int(key[0]),
                        number=int(key[1]),
                        rewards=steps["reward"][rows],
                        proxies={name: steps[name][rows].astype(float) for name in self.proxies},
                        died=str(steps["ended"][rows[0]]) == "terminated",
                    )
                )
        return found

    @cached_property
    def last_chances(self) -> dict[tuple[int, int], int]:
        """Game and life → decisions before the end when the death could last be put off."""
        found = self.beside(LAST_CHANCES_FILE, "deaths")
        if found is None:
            return {}
        known = {(one["game"], one["life"]): one["decisions_before_end"] for one in found["deaths"]}
        if any(life.died and (life.game, life.number) not in known for life in self.lives):
            return {}  # not run to the end
        return {key: back for key, back in known.items() if back is not None}

    def beside(self, name: str, *needed: str) -> dict[str, Any] | None:
        """Return what a simulation with the study's agent left beside the study, if it is there."""
        path = self.folder / name
        if not path.exists():
            return None
        known = read_json(path, "policy", *needed)
        if known["policy"] != self.about["policy"]["identity"]:
            raise Refused(
                f"{path} is about another agent than the study beside it; move it away, "
                "and run the command that writes it again"
            )
        return known

    def put_beside(self, name: str, content: dict[str, Any]) -> None:
        """Write what `beside` reads."""
        text = json.dumps({"policy": self.about["policy"]["identity"], **content}, indent=1)
        with written_whole(self.folder / name) as place:
            place.write_text(text + "\n", encoding="utf-8")

    @cached_property
    def lives_in_play(self) -> list[Life]:
        """The kept episodes up to the decision at which each death could last be put off.

        Without deaths that nothing put off: they were decided before the agent's first decision.
        """
        known = self.last_chances
        if not known:
            return []
        return [
            life.until(known[life.game, life.number]) if life.died else life
            for life in self.lives
            if not life.died or (life.game, life.number) in known
        ]

    def fit(self, method: str, *, proxy: str | None = None) -> Margins:
        """Return margins at β = 0.95 from all moments."""
        tuples = self.tuples(proxy)
        return margins_from_sample(
            Sample.from_tuples(tuples),
            0.95,
            method,
            about={"proxy": tuples.proxy},
            minimum_bandwidth=self.about["minimum_bandwidth"],
        )


def positive(text: str) -> int:
    """Read a positive number, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def stored_study(folder: Path, name: str) -> StoredStudy:
    """Return a finished study by its name."""
    known = stored_studies(folder)
    if name not in known:
        raise Refused(
            f"there is no finished study {name!r} in {folder}, which has "
            f"{', '.join(known) or 'none'}; `safemargin reproduce` lists what can be measured"
        )
    return known[name]


def stored_studies(folder: Path) -> dict[str, StoredStudy]:
    """Return finished studies by name: FOLDER/NAME/study.json or FOLDER/NAME/tables/study.json."""
    inside = {path.parents[1].name: path.parent for path in folder.glob(f"*/tables/{ABOUT_FILE}")}
    direct = {path.parent.name: path.parent for path in folder.glob(f"*/{ABOUT_FILE}")}
    return {name: StoredStudy(path) for name, path in sorted({**inside, **direct}.items())}


def _read(path: Path) -> Columns:
    with _told(path):
        table = parquet.read_table(path)
        return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """Return a JSON object that holds at least some entries."""
    with _told(path):
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in needed:
            known[name]
        return known


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say which file cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"{path} is missing or damaged ({type(error).__name__}: {error}); "
            "restore it, or make it anew with the command that writes it"
        ) from error
