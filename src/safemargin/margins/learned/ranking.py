"""A learned ranking as a file: where the agent is likely to be wrong, or much is at stake.

The file is JSON like `margins.json`: it says whose it is, and can never execute code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.files import written_whole
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.margins.learned.probe import RANKINGS, Probe

FORMAT, VERSION = "safemargin-ranking", 1
MOST_VALUES = 1000


def check_target(target: str) -> None:
    """Raise InvalidInput for a target that cannot be learned."""
    if target not in RANKINGS:
        raise InvalidInput(
            f"a ranking is learned of regret or stakes, not of {target!r}; "
            + did_you_mean(target, RANKINGS)
        )


@dataclass(frozen=True, eq=False)
class Ranking:
    """A model that puts decisions in order of the agent's regret, or of what is at stake.

    `ranking.probe(inputs)` gives the value of decisions and whether they are unlike any measured
    (`safemargin.policies.features.History` makes the inputs live); those above
    `ranking.threshold(0.05)` are the 5 % to look at.
    """

    target: str
    """'regret' or 'stakes'."""
    probe: Probe
    values: Floats  # sorted, at natural moments that the models had not seen
    about: Mapping[str, Any] = field(default_factory=dict)
    """Environment and policy that it was learned from, and what it captures."""

    def threshold(self, share: float) -> float:
        """Return the value above which this share of decisions lies."""
        if not 0 < share <= 1:
            raise InvalidInput(f"a share of decisions lies between 0 and 1, got {share:g}")
        return float(np.quantile(self.values, 1 - share))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        kept = self.values
        if len(kept) > MOST_VALUES:
            kept = np.quantile(kept, np.linspace(0, 1, MOST_VALUES))
        content = {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            **self.about,
            "values": kept.tolist(),
            "probe": self.probe.to_dict(),
        }
        try:
            with written_whole(path) as draft:
                draft.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"cannot write {os.fspath(path)}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranking:
        """Read a file that `save` wrote; InvalidInput in one sentence for any other."""
        name = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{name} is no JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidInput(
                f"{name} holds no ranking; `safemargin learn STUDY --target regret -o FILE` writes "
                "one"
            )
        if content.get("version") != VERSION:
            raise InvalidInput(
                f"{name} has version {content.get('version')!r}, this safemargin reads {VERSION}"
            )
        try:
            check_target(content["target"])
            values = _checked(content["values"])
            probe = Probe.from_dict(content["probe"])
        except (KeyError, TypeError, ValueError, InvalidInput) as error:
            raise InvalidInput(f"{name} is damaged: {error}") from error
        known = {"format", "version", "target", "values", "probe"}
        about = {key: value for key, value in content.items() if key not in known}
        return cls(content["target"], probe, values, about)


def _checked(values: Any) -> npt.NDArray[np.float64]:
    if type(values) is not list or not values or any(type(one) is not float for one in values):
        raise ValueError("its values are no list of numbers")
    array = np.array(values)
    if not np.isfinite(array).all() or (np.diff(array) < 0).any():
        raise ValueError("its values are not finite, or not in order")
    return array
