"""margins.json: plain, versioned, self-describing; written whole or not at all, checked on reading.

Version 3 (older ones are read too): 'natural_proxies' says what proxies looked like, or is null.
Since version 2, 'estimand' says whose loss is bounded, and null in 'upper' stands where the data
allow no bound.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from safemargin.core.files import written_whole
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, MarginsFileError
from safemargin.margins.bounds.table import Bound
from safemargin.margins.natural_proxies import NaturalProxies

FORMAT = "safemargin-margins"
VERSION = 3
VERSIONS = (1, 2, 3)
"""Those that can be read."""
README = (
    "Look up the safety margin of a proxy value p at a tolerance z (in reward units): take the bin "
    "whose value in 'grid' is nearest to p; go through 'n_values' in order while upper[i][bin] is "
    "a number and at most z; the margin is the last n for which that held, or 0 if it failed at "
    "the first. upper[i] belongs to n_values[i]; null means that the data allow no bound there. "
    "Below grid[0] the first bin is nearest; above the last grid value nothing was measured: use "
    "margin 0. If 'looks_at_n' is true, the proxy has one value per n and grid[i] belongs to "
    "n_values[i]; above grid[i] stop before n_values[i]. The margin holds for 'policy' in "
    "'environment' only. With probability about 'confidence' the loss of discounted reward is at "
    "most z when the next so many actions are random: the expected loss if 'estimand' is 'mean', "
    "that of one run if it is 'single-run'; details.guarantee says how far that can be relied on. "
    "'natural_proxies' holds order statistics of the proxy at one random decision of each of "
    "'count' episodes: live ones that look otherwise void all this."
)


def describe_bound(bound: Bound) -> dict[str, Any]:
    """The entries that hold the table, as plain lists, numbers and texts."""
    return {
        "looks_at_n": bound.looks_at_n,
        "estimand": bound.estimand,
        "method": bound.method,
        "confidence": bound.confidence,
        "details": dict(bound.details),
        "n_values": list(bound.n_values),
        "grid": bound.grid.tolist() if bound.looks_at_n else bound.grid[0].tolist(),
        "upper": [
            [value if math.isfinite(value) else None for value in row]
            for row in bound.upper.tolist()
        ],
    }


def write_document(path: Path, document: Mapping[str, Any]) -> Path:
    """Write it whole or not at all."""
    try:
        # One line per entry: short enough to read, and every prefix of it is broken JSON.
        entries = [
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
            for name, value in document.items()
        ]
        content = ("{\n" + ",\n".join(entries) + "\n}").encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the margins hold something JSON cannot: {error}") from error
    try:
        with written_whole(path) as target:
            target.write_bytes(content)
    except OSError as error:
        raise MarginsFileError(f"{path} cannot be written: {error.strerror}") from error
    return path


def read_document(path: str | os.PathLike[str]) -> Any:
    """The JSON in a file, or one sentence on why there is none."""
    try:
        return json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise MarginsFileError(
            f"{path} does not exist; fit first (safemargin fit STUDY -o {path})"
        ) from None
    except OSError as error:
        raise MarginsFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MarginsFileError(
            f"{path} is not whole JSON (truncated or of another kind); fit again"
        ) from error


def parse_document(data: Any, source: str) -> dict[str, Any]:
    """The fields of `Margins` from what `read_document` gave; checks everything."""

    def fail(what: str) -> NoReturn:
        raise MarginsFileError(f"{source}: {what}; fit again to make a new file")

    def entry(name: str, kind: type) -> Any:
        if name not in data:
            fail(f"the entry {name!r} is missing")
        if type(data[name]) is not kind:  # exactly: True must not pass for a number
            fail(f"the entry {name!r} must be a {kind.__name__}, not {data[name]!r:.40}")
        return data[name]

    def text_in(name: str, key: str) -> None:
        value = entry(name, dict).get(key)
        if value is not None and type(value) is not str:
            fail(f"the {key} in {name!r} must be a text, not {value!r:.40}")

    def table(name: str, depth: int, *, nulls: bool = False) -> Floats:
        rows = [entry(name, list)] if depth == 1 else entry(name, list)
        widths = {len(row) if type(row) is list else -1 for row in rows}
        if len(widths) != 1 or -1 in widths:
            fail(f"the entry {name!r} must hold {'numbers' if depth == 1 else 'equal rows'}")
        for row in rows:
            for value in row:
                if value is None and nulls:
                    continue
                if type(value) not in (int, float) or not math.isfinite(value):
                    fail(f"the entry {name!r} holds {value!r:.40} where a number belongs")
        return np.array(
            [[math.inf if value is None else value for value in row] for row in rows],
            dtype=np.float64,
        )

    if type(data) is not dict or data.get("format") != FORMAT:
        fail(f"this is not a margins file (its format is not {FORMAT!r})")
    version = entry("version", int)
    if version not in VERSIONS:
        fail(
            f"its version is {version} and this safemargin reads versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]}; install the safemargin that wrote it, or"
        )
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        fail(f"it holds something that cannot be written again ({error})")
    try:
        n_values = entry("n_values", list)
        looks_at_n = entry("looks_at_n", bool)
        grid = table("grid", 2 if looks_at_n else 1)
        bound = Bound(
            n_values=tuple(n_values),
            grid=grid if looks_at_n else np.repeat(grid, len(n_values), axis=0),
            upper=table("upper", 2, nulls=version > 1),
            confidence=entry("confidence", float),
            method=entry("method", str),
            details=entry("details", dict),
            looks_at_n=looks_at_n,
            estimand=entry("estimand", str) if version > 1 else "mean",
        )
        natural = None
        if version > 2 and data.get("natural_proxies") is not None:
            natural = NaturalProxies.from_dict(data["natural_proxies"])
    except (InvalidInput, OverflowError, TypeError) as error:
        fail(str(error))
    for name, key in (("policy", "identity"), ("policy", "kind"), ("environment", "identity")):
        text_in(name, key)
    notes = entry("details", dict).get("notes", [])
    if type(notes) is not list or any(type(note) is not str for note in notes):
        fail(f"the notes in 'details' must be a list of texts, not {notes!r:.40}")
    return {
        "bound": bound,
        "natural_proxies": natural,
        "proxy": entry("proxy", str),
        "environment": entry("environment", dict),
        "policy": entry("policy", dict),
        "settings": entry("settings", dict),
        "counts": entry("counts", dict),
        "created_by": entry("created_by", str),
        "safemargin_version": entry("safemargin_version", str),
    }


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")
