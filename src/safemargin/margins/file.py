"""margins.json: plain, versioned and self-describing; written atomically, checked when read.

Version 2 added 'estimand', which says which loss is bounded, and null in 'upper' where the data
allow no bound. Version 3 added 'natural_proxies', the distribution of the proxy (or null). Version
4 added 'probe', the model behind a learned proxy (or null), and 'test_vectors'. 'measured' is there
only where margins are not about random actions and discounted reward.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from safemargin.core.files import written_whole
from safemargin.core.measured import Measured
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, MarginsFileError
from safemargin.margins.bounds.table import Bound
from safemargin.margins.learned.probe import Probe
from safemargin.margins.natural_proxies import NaturalProxies

FORMAT = "safemargin-margins"
VERSION = 4
VERSIONS = (1, 2, 3, 4)
"""The versions that can be read."""
ABOUT = {
    "safemargin_version": str,
    "created_by": str,
    "environment": dict,
    "policy": dict,
    "settings": dict,
    "counts": dict,
    "proxy": str,
}
"""The entries that say whose margins these are, in the file's order, and their types."""
TYPES = {
    "version": int,
    "n_values": list,
    "looks_at_n": bool,
    "grid": list,
    "upper": list,
    "confidence": float,
    "method": str,
    "details": dict,
    "estimand": str,
    **ABOUT,
}
"""All entries that a file must have, and their types; version 1 has no estimand."""
README = (
    "To look up the safety margin of a proxy value p at a tolerance z (in reward units), take the "
    "bin whose value in 'grid' is nearest to p. Go through 'n_values' in order as long as "
    "upper[i][bin] is a number and at most z; the margin is the last n for which this held, or 0 "
    "if the first n failed. upper[i] belongs to n_values[i]; null means that the data allow no "
    "bound there. Below grid[0], the first bin is nearest; above the last grid value nothing was "
    "measured: use a margin of 0. If 'looks_at_n' is true, the proxy has one value per n and "
    "grid[i] belongs to n_values[i]; above grid[i], stop before n_values[i]. The margin holds only "
    "for 'policy' in 'environment'. It means: if the next n actions are random, then with a "
    "probability of about 'confidence' the loss of discounted reward is at most z. This is the "
    "expected loss if 'estimand' is 'mean', and the loss of one run if it is 'single-run'; "
    "details.guarantee says how far it can be relied on. 'natural_proxies' holds order statistics "
    "of the proxy at one random decision of each of 'count' episodes; if live values differ in "
    "distribution, the guarantee no longer applies. If 'probe' is not null, it computes the proxy "
    "from the policy's hidden layer and scores; arrays are base64 of little-endian numbers. If "
    "'method' is 'granted', 'upper' holds the tolerances at which a margin is granted, and "
    "details.guarantee says what is promised about it. Each of the 'test_vectors' holds a proxy, a "
    "tolerance and the margin that a correct look-up returns."
)

README_STATISTIC = (
    "The loss that is bounded here is no mean: 'estimand' says p95 (or p90, p99) for the 95 % "
    "percentile of the loss over the random actions at a moment, and sd for its standard deviation."
)
"""Added where margins are about the spread of the loss at a moment."""

README_MEASURED = (
    "These margins are about something else: wherever this text says random, read the 'mistakes' "
    "in 'measured', and wherever it says loss of discounted reward, read the 'loss' there."
)
"""Added where margins are about something else than the paper's."""


def describe_bound(bound: Bound) -> dict[str, Any]:
    """Return the entries that hold the table, as plain lists, numbers and strings."""
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
    """Write the document completely or not at all."""
    try:
        # One line per entry: easy to read, and a truncated file is never valid JSON.
        entries = [
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
            for name, value in document.items()
        ]
        content = ("{\n" + ",\n".join(entries) + "\n}").encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the margins hold something that JSON cannot: {error}") from error
    try:
        with written_whole(path) as target:
            target.write_bytes(content)
    except OSError as error:
        raise MarginsFileError(f"{path} cannot be written: {error.strerror}") from error
    return path


def read_document(path: str | os.PathLike[str]) -> Any:
    """Read the JSON in a file; MarginsFileError says why it cannot be read."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        return json.loads(text, parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise MarginsFileError(
            f"{path} does not exist; fit first (safemargin fit STUDY -o {path})"
        ) from None
    except OSError as error:
        folder = isinstance(error, IsADirectoryError)
        advice = "; name the file that `safemargin fit STUDY -o FILE` writes" if folder else ""
        raise MarginsFileError(f"{path} cannot be read: {error.strerror}{advice}") from error
    except (ValueError, RecursionError) as error:
        raise MarginsFileError(
            f"{path} is not valid JSON (truncated, or not a margins file); fit again"
        ) from error


def parse_document(data: Any, source: str) -> dict[str, Any]:
    """Check what `read_document` returned, and return the fields of `Margins`."""

    def fail(what: str, remedy: str = "fit again to make a new file") -> NoReturn:
        raise MarginsFileError(f"{source}: {what}; {remedy}")

    if type(data) is not dict or data.get("format") != FORMAT:
        fail(f"this is not a margins file (its format is not {FORMAT!r})")
    for name, kind in TYPES.items():
        if name == "estimand" and data["version"] == 1:
            continue
        if name not in data:
            fail(f"the entry {name!r} is missing")
        if type(data[name]) is not kind:  # exactly: True must not pass for a number
            fail(f"the entry {name!r} must be of type {kind.__name__}, not {data[name]!r:.40}")
        if name == "version" and data[name] not in VERSIONS:
            fail(
                f"its version is {data[name]} and this safemargin reads versions "
                f"{VERSIONS[0]} to {VERSIONS[-1]}",
                "install the safemargin that wrote it, or fit again to make a new file",
            )
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        fail(f"it contains something that cannot be written again ({error})")
    for name, key in (("policy", "identity"), ("policy", "kind"), ("environment", "identity")):
        value = data[name].get(key)
        if value is not None and type(value) is not str:
            fail(f"the {key} in {name!r} must be a string, not {value!r:.40}")
    notes = data["details"].get("notes", [])
    if type(notes) is not list or any(type(note) is not str for note in notes):
        fail(f"the notes in 'details' must be a list of strings, not {notes!r:.40}")
    n_values, looks_at_n = tuple(data["n_values"]), data["looks_at_n"]
    natural = data.get("natural_proxies") if data["version"] > 2 else None
    probe = data.get("probe") if data["version"] > 3 else None
    try:
        grid = _table("grid", data["grid"] if looks_at_n else [data["grid"]])
        bound = Bound(
            n_values=n_values,
            grid=grid if looks_at_n else np.repeat(grid, len(n_values), axis=0),
            upper=_table("upper", data["upper"], nulls=data["version"] > 1),
            looks_at_n=looks_at_n,
            estimand=data["estimand"] if data["version"] > 1 else "mean",
            **{name: data[name] for name in ("confidence", "method", "details")},
        )
        natural_proxies = None if natural is None else NaturalProxies.from_dict(natural)
        learned = None if probe is None else Probe.from_dict(probe)
        measured = Measured.from_dict(data["measured"]) if "measured" in data else Measured()
    except (InvalidInput, OverflowError, TypeError) as error:
        fail(str(error))
    about = {name: data[name] for name in ABOUT}
    found = {"natural_proxies": natural_proxies, "probe": learned, "measured": measured}
    return {"bound": bound, **found, **about}


def _table(name: str, table: list[Any], *, nulls: bool = False) -> Floats:
    """Check a table and return it, [rows, columns]; null stands for infinity."""
    widths = {len(row) if type(row) is list else -1 for row in table}
    if len(widths) != 1 or -1 in widths:
        raise InvalidInput(f"the entry {name!r} must hold equal rows")
    for value in itertools.chain(*table):
        number = type(value) in (int, float) and math.isfinite(value)
        if not (number or (value is None and nulls)):
            raise InvalidInput(f"the entry {name!r} holds {value!r:.40} where a number belongs")
    return np.array(
        [[math.inf if value is None else value for value in row] for row in table],
        dtype=np.float64,
    )


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")
