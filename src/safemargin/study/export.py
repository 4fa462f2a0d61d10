"""Exports a study to other tools: its tuples or steps as CSV or Parquet, its episodes to Minari."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.files import written_whole
from safemargin.core.measured import parse_perturbation
from safemargin.core.progress import Progress
from safemargin.core.records import Array
from safemargin.engines import Job
from safemargin.errors import InvalidInput, MissingExtra, StudyIncomplete
from safemargin.study.grouping import group_labels
from safemargin.study.loss_statistics import loss_statistic
from safemargin.study.minari import SCHEME, write_dataset
from safemargin.study.reading import TupleRow
from safemargin.study.regrets import RegretReader
from safemargin.study.store import Store

Columns = Mapping[str, Sequence[Any] | Array]


class Exported:
    """The part of `Study` that writes it for other tools."""

    store: Store

    def job(self) -> Job:
        """Return the study's parts."""
        raise NotImplementedError

    def export(
        self,
        path: str | Path,
        *,
        steps: bool = False,
        episodes: int | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the tuples (every moment, n and proxy) as .csv or .parquet.

        With `steps`, write reward and proxies at every step of the natural episodes instead, or of
        the first `episodes`; where a game has lives, each is an episode. 'minari:NAME-v0' becomes a
        new Minari dataset of these episodes, which are played again for their observations.
        """
        if not str(path).startswith(SCHEME):
            if steps:
                return export_steps(self.store, Path(path), episodes=episodes)
            return export_tuples(self.store, Path(path))
        if steps:
            raise InvalidInput("a Minari dataset always holds every step; leave steps out")
        check_episodes(episodes)
        return write_dataset(
            self.store, self.job(), str(path), episodes=episodes, progress=progress
        )


def export_tuples(store: Store, path: Path) -> Path:
    """Write one row for each moment, proxy and n; moments that share a `group` belong together.

    `loss_sd` and `loss_p95` say how the loss varies over the trials of a moment. `regret` and
    `stakes` are empty where the trials cannot show them; `regret_how` says how they
    are known.
    """
    rows = store.tuple_rows()
    if not rows:
        raise StudyIncomplete(f"the study in {store.folder} holds no tuples to export yet")
    columns = dict(zip(TupleRow._fields, map(list, zip(*rows, strict=True)), strict=True))
    for name in ("exact", "capped"):
        columns[name] = [bool(value) for value in columns[name]]
    keys = [row.key for row in rows]
    moments = list(dict.fromkeys(keys))
    group_of = dict(zip(moments, group_labels(store, moments).tolist(), strict=True))
    columns["group"] = [group_of[key] for key in keys]
    reader, step_of = RegretReader(store), {row.key: row.step for row in rows}
    found = {(key, one.estimate.n): one for key, one in store.all_measurements() if key in step_of}
    known = {(key, n): reader.of(key, step_of[key], one) for (key, n), one in found.items()}
    regrets = [known[row.key, row.n] for row in rows]
    for name in ("regret", "stakes"):
        columns[name] = [None if each is None else getattr(each, name) for each in regrets]
    worst = parse_perturbation(store.settings().perturb).kind == "worst"  # nothing varies there
    for name in ("sd", "p95"):
        columns[f"loss_{name}"] = [
            None if worst else loss_statistic(found[row.key, row.n], name) for row in rows
        ]
    columns["regret_how"] = [None if each is None else each.how for each in regrets]
    return write_table(columns, path)


def export_steps(store: Store, path: Path, *, episodes: int | None = None) -> Path:
    """Write one row for each step of the (first `episodes`) natural episodes: reward and proxies.

    Where a game has lives, each is an episode. A proxy that looks at n has one column for each n,
    named after it: `own_n1`, `own_n4`.
    """
    check_episodes(episodes)
    keys = [key for key in store.episode_outlines() if key.phase == "natural"][:episodes]
    if not keys:
        raise StudyIncomplete(f"the study in {store.folder} holds no natural episodes yet")
    n_values = store.settings().n_values
    pieces: dict[str, list[Array]] = {}
    for episode in map(store.episode, keys):
        steps = np.arange(episode.steps)
        columns: dict[str, Array] = {
            "episode": np.full(episode.steps, episode.key.index),
            "life": np.full(episode.steps, episode.key.life),
            "step": steps,
            "opening": steps < episode.opening,
            "ended": np.full(episode.steps, episode.ended),
            "reward": episode.rewards,
        }
        for name, recorded in episode.proxies.items():
            values = recorded.astype(np.float32)
            if values.ndim == 1:
                columns[name] = values
            else:
                columns |= {f"{name}_n{n}": values[:, at] for at, n in enumerate(n_values)}
        for name, piece in columns.items():
            pieces.setdefault(name, []).append(piece)
    return write_table({name: np.concatenate(parts) for name, parts in pieces.items()}, path)


def check_episodes(episodes: int | None) -> None:
    """Raise InvalidInput unless there is at least one episode to export."""
    if episodes is not None and episodes < 1:
        raise InvalidInput(f"the steps of at least 1 episode can be exported, got {episodes}")


def write_table(columns: Columns, path: Path) -> Path:
    """Write columns of equal length as .csv or .parquet, by the file's name."""
    if path.suffix not in (".csv", ".parquet"):
        raise InvalidInput(f"cannot export to {path.name!r}: end the name in .csv or .parquet")
    try:
        with written_whole(path) as draft:
            if path.suffix == ".parquet":
                _write_parquet(columns, draft)
            else:
                with open(draft, "w", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file)
                    writer.writerow(columns)
                    writer.writerows(zip(*columns.values(), strict=True))
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    return path


def _write_parquet(columns: Columns, draft: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("exporting to Parquet", extra="parquet") from None
    table = arrow.table(dict(columns))
    # The bytes of real numbers compress better apart: half the size.
    real = [field.name for field in table.schema if arrow.types.is_floating(field.type)]
    parquet.write_table(
        table,
        draft,
        compression="zstd",
        use_dictionary=[name for name in table.column_names if name not in real],
        use_byte_stream_split=real,
    )
