"""The doctor's report: the findings and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from safemargin.core.plain import plain_values
from safemargin.environments.simulator import Way

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor found."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether and how an environment can be measured."""

    measurable: bool
    way: Way | None
    """How to get back to a moment; None where there is no sound way."""
    environment_deterministic: bool
    policy_deterministic: bool | None
    """None without a policy."""
    distinct_starts: int
    """Different episodes among the starts tried."""
    starts_tried: int
    continuations: int
    """Restored runs that were compared with the uninterrupted run, in the last way tried."""
    wrong: int
    """How many of them differed."""
    opaque: tuple[str, ...]
    """Attributes that lead to objects whose state cannot be seen."""
    findings: tuple[Finding, ...]
    verdict: str
    """One sentence."""
    mean_return: float | None = None
    """The policy's mean return over a few episodes; None where none were played or none ended."""
    unlike_training: str | None = None
    """A sentence, if that is clearly less than at the end of its training."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return plain_values(asdict(self))  # type: ignore[no-any-return]
