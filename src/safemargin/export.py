"""A study's tuples as a table for other tools: CSV or Parquet."""

from __future__ import annotations

import csv
from pathlib import Path

from safemargin.errors import InvalidInput, MissingExtra, StudyIncomplete
from safemargin.files import written_whole
from safemargin.store import Store

COLUMNS = (
    "phase",
    "episode",
    "life",
    "step",
    "proxy",
    "proxy_value",
    "n",
    "criticality",
    "half_width",
    "trials",
    "exact",
    "capped",
    "unperturbed",
)


def export_tuples(store: Store, path: Path) -> Path:
    """One row for each moment, proxy and n."""
    rows = store.query(
        f"SELECT {', '.join(COLUMNS)} FROM tuples ORDER BY phase, episode, life, proxy, n"
    )
    if not rows:
        raise StudyIncomplete(f"the study in {store.folder} holds no tuples to export yet")
    try:
        if path.suffix == ".csv":
            with (
                written_whole(path) as place,
                open(place, "w", newline="", encoding="utf-8") as file,
            ):
                writer = csv.writer(file)
                writer.writerow(COLUMNS)
                writer.writerows(rows)
        elif path.suffix == ".parquet":
            _write_parquet(rows, path)
        else:
            raise InvalidInput(f"cannot export to {path.name!r}: end the name in .csv or .parquet")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    return path


def _write_parquet(rows: list[tuple[object, ...]], path: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("exporting to Parquet", extra="parquet") from None
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    for name in ("exact", "capped"):
        columns[name] = [bool(value) for value in columns[name]]
    with written_whole(path) as place:
        parquet.write_table(arrow.table(columns), place)
