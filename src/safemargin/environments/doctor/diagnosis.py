"""The doctor's report: the findings and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from safemargin.core.plain import plain_values
from safemargin.environments.simulator import Way
from safemargin.errors import DiagnosisWrong

Level = Literal["ok", "note", "problem"]

DETERMINISTIC = "the environment is deterministic"
"""The finding that no randomness was found, nor anything that may hide it."""


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
    asked_way: Way | None = None
    """The way that was asked for; None where the doctor was to choose."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return plain_values(asdict(self))  # type: ignore[no-any-return]


def corrected(diagnosis: Mapping[str, Any], wrong: DiagnosisWrong) -> dict[str, Any]:
    """Return a diagnosis, as plain values, set right by what measuring showed.

    `wrong` itself is raised where the user asked for the way that turned out to be wrong.
    """
    if "way" in wrong.correction:
        if diagnosis.get("asked_way") is not None:
            raise wrong
        conclusion = "moments are reached by replay"
    else:
        conclusion = "the environment is taken as random"
    finding = Finding("note", f"{wrong.cause}: {conclusion}, and everything was measured again")
    outdated = [DETERMINISTIC] if "environment_deterministic" in wrong.correction else []
    findings = [each for each in diagnosis["findings"] if each["text"] not in outdated]
    return {
        **diagnosis,
        **wrong.correction,
        "findings": [*findings, asdict(finding)],
        "verdict": f"{diagnosis['verdict']}; but collecting showed otherwise: {conclusion}",
    }
