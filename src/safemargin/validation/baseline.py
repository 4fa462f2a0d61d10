"""What a gate knows of one study, and the small file that keeps it: baseline.json.

Plain, versioned and checked when read, like margins.json. It holds what can be paired with another
study of the same settings: the seed and return of each natural game, and the proxy and losses of
each measured moment.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from safemargin.core.files import written_whole
from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.errors import BaselineFileError, InvalidInput
from safemargin.margins.bounds.sample import Booleans, Integers, Sample

FORMAT = "safemargin-baseline"
VERSION = 1
README = (
    "What `safemargin gate` compares another checkpoint with. 'games' holds, for each natural "
    "game, its number, the seed it was reset with and its return. 'moments' holds, for each "
    "measured moment, whether it was drawn as the agent meets it (natural) or spread over proxies, "
    "its game, life and step, a group that is equal for games that are copies of one another, the "
    "value of 'proxy', and 'losses', the mean loss of discounted reward after each of 'n_values' "
    "random actions. The file holds only for 'environment' and 'settings'."
)
ABOUT = {
    "proxy": str,
    "versions": dict,
    "environment": dict,
    "policy": dict,
    "settings": dict,
    "games": dict,
    "moments": dict,
}
"""The entries after the format, in the file's order, and their types."""
GAMES = {"number": int, "seed": int, "return": float}
MOMENTS = {"natural": bool, "game": int, "life": int, "step": int, "group": int, "proxy": float}
"""The columns of both tables, besides 'losses', and the types of their values."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a gate knows of one study: its games and its measured moments."""

    source: str
    """The folder or file it was read from, for messages."""
    proxy: str
    versions: Mapping[str, str]
    environment: Mapping[str, Any]
    policy: Mapping[str, Any]
    settings: Mapping[str, Any]
    game_numbers: Integers  # [games] natural games in order
    game_seeds: Integers  # [games] what the environment was reset with
    returns: Floats  # [games] the sum of rewards, over all lives
    natural: Booleans  # [moments]
    games: Integers  # [moments] number of the game within its phase
    lives: Integers  # [moments]
    steps: Integers  # [moments]
    groups: Integers  # [moments] equal for one game, and for copies
    proxies: Floats  # [moments], or [moments, n] where the proxy looks at n
    losses: Floats  # [moments, n]

    @property
    def n_values(self) -> tuple[int, ...]:
        return tuple(self.settings["n_values"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def title(self) -> str:
        """The policy and where its measurements lie, for people."""
        return f"{self.policy['description']} ({self.source})"

    def sample(self, moments: Booleans | None = None) -> Sample:
        """Return all moments, or some, as a fit receives them."""
        rows: Any = slice(None) if moments is None else moments
        return Sample.from_arrays(
            self.proxies[rows],
            self.losses[rows],
            self.n_values,
            natural=self.natural[rows],
            groups=self.groups[rows],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file as plain lists, numbers and strings."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "readme": README,
            **{name: dict(getattr(self, name)) for name in ("versions", "environment", "policy")},
            "settings": dict(self.settings),
            "proxy": self.proxy,
            "n_values": list(self.n_values),
            "games": {
                "number": self.game_numbers.tolist(),
                "seed": self.game_seeds.tolist(),
                "return": self.returns.tolist(),
            },
            "moments": {
                "natural": self.natural.tolist(),
                "game": self.games.tolist(),
                "life": self.lives.tolist(),
                "step": self.steps.tolist(),
                "group": self.groups.tolist(),
                "proxy": self.proxies.tolist(),
                "losses": self.losses.tolist(),
            },
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file completely or not at all, one entry a line."""
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in self.to_dict().items()]
        try:
            with written_whole(path) as target:
                target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        except OSError as error:
            raise BaselineFileError(f"{path} cannot be written: {error.strerror}") from error
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a file that `save` wrote; BaselineFileError says what is wrong with it."""
        remedy = "write it again (safemargin gate STUDY --save-baseline FILE)"
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
            data = json.loads(text, parse_constant=_refuse)
        except OSError as error:
            raise BaselineFileError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
        except (ValueError, RecursionError) as error:
            text = f"{path} is not valid JSON (truncated, or no baseline); {remedy}"
            raise BaselineFileError(text) from error
        if type(data) is not dict or data.get("format") != FORMAT:
            raise BaselineFileError(f"{path} is not a baseline; {remedy}")
        if data.get("version") != VERSION:
            raise BaselineFileError(
                f"{path} is a baseline of version {data.get('version')!r:.20}, and this safemargin "
                f"reads version {VERSION}; install the one that wrote it, or {remedy}"
            )
        try:
            return cls(source=str(path), **_fields(data))
        except (InvalidInput, ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise BaselineFileError(f"{path} is damaged: {error}; {remedy}") from error


def _refuse(token: str) -> NoReturn:
    raise ValueError(token)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Check the entries of a file and return the fields of `Baseline`."""
    for name, kind in ABOUT.items():
        if type(data.get(name)) is not kind:
            raise InvalidInput(f"the entry {name!r} must be of type {kind.__name__}")
    for part, names in (("environment", ("name", "identity")), ("policy", ("description",))):
        for name in names:
            if type(data[part].get(name)) is not str:
                raise InvalidInput(f"the {name} in {part!r} must be a string")
    if type(data["policy"].get("identity")) is not str:
        raise InvalidInput("the identity in 'policy' must be a string")
    if any(type(each) is not str for each in data["versions"].values()):
        raise InvalidInput("the 'versions' must be strings")
    settings = Settings.from_mapping(data["settings"])
    games = {name: _column(data["games"], name, kind) for name, kind in GAMES.items()}
    moments = {
        name: _column(data["moments"], name, kind)
        for name, kind in MOMENTS.items()
        if name != "proxy"
    }
    proxies, losses = (_numbers(data["moments"], name) for name in ("proxy", "losses"))
    columns = (len(losses), len(settings.n_values))
    if losses.shape != columns or proxies.shape not in (columns, columns[:1]):
        raise InvalidInput("the losses and proxies do not fit the n_values of the settings")
    if {len(each) for each in moments.values()} != {len(losses)}:
        raise InvalidInput("the columns of 'moments' differ in length")
    if len({len(each) for each in games.values()}) != 1 or not (np.diff(games["number"]) > 0).all():
        raise InvalidInput("the columns of 'games' differ in length, or are not in order")
    if not np.isin(moments["game"][moments["natural"]], games["number"]).all():
        raise InvalidInput("a natural moment belongs to no game")
    return {
        **{name: data[name] for name in ("proxy", "versions", "environment", "policy")},
        "settings": json.loads(settings.to_json()),
        "game_numbers": games["number"],
        "game_seeds": games["seed"],
        "returns": games["return"],
        "natural": moments["natural"],
        "games": moments["game"],
        "lives": moments["life"],
        "steps": moments["step"],
        "groups": moments["group"],
        "proxies": proxies,
        "losses": losses,
    }


def _column(table: Mapping[str, Any], name: str, kind: type) -> npt.NDArray[Any]:
    """Check a column of numbers (or booleans) and return it, [rows]."""
    values = table.get(name)
    kinds = (int, float) if kind is float else (kind,)
    if type(values) is not list or not values or any(type(each) not in kinds for each in values):
        raise InvalidInput(f"the column {name!r} must be a list of {kind.__name__}")
    if kind is int and min(values) < 0:
        raise InvalidInput(f"the column {name!r} holds {min(values)}, which is below 0")
    if kind is float and not all(map(math.isfinite, values)):
        raise InvalidInput(f"the column {name!r} holds a number that is not finite")
    return np.array(values, dtype={int: np.int64, bool: np.bool_, float: np.float64}[kind])


def _numbers(table: Mapping[str, Any], name: str) -> Floats:
    """Check a column of numbers, or of equal rows of them, and return it."""
    values = table.get(name)
    rows = values if type(values) is list else [None]
    flat: list[Any] = [one for row in rows for one in (row if type(row) is list else [row])]
    if not flat or any(type(one) not in (int, float) or not math.isfinite(one) for one in flat):
        raise InvalidInput(f"the column {name!r} must hold finite numbers only")
    return np.array(values, dtype=np.float64)  # ValueError where rows differ in length
