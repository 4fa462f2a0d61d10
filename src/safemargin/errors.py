"""Every exception safemargin raises on purpose.

SafemarginError
├── InvalidInput            a value that cannot be right: tolerance below 0, an unknown name
│   ├── MissingExtra        an optional library is needed; the message is the line that installs it
│   └── NoPictures          the environment cannot be made here, or draws nothing
├── EnvironmentFault        the environment broke its contract: NaN reward, an exception, …
│   └── NotMeasurable       the doctor found no sound way to measure this environment
├── EngineFault             workers kept dying, or a cluster cannot be used
├── PolicyFault             the policy broke its contract: NaN scores, wrong shape, …
├── StudyError              a study on disk cannot serve the request
│   ├── StudyMismatch       another policy, environment or settings than the study was made with
│   ├── StudyIncomplete     not enough in it yet for what was asked
│   ├── StudyExists         there is one already where a new one was to be made
│   ├── StudyCorrupt        the database cannot be read
│   ├── StudyBusy           another process is collecting into it
│   └── UntrustedCode       it names code to run that the user has not named
├── MarginsFileError        margins.json is unreadable, truncated or of an unknown version
├── AuditLogError           the log of a watched fleet cannot be read, written or trusted
└── OverseerLost            whoever oversees the agent cannot be reached, and it is to stop then

The command line turns any of them into one sentence and exit status 2
(NotMeasurable is a finding, status 1).
"""

from __future__ import annotations

import difflib
import functools
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class SafemarginError(Exception):
    """The base of all errors that safemargin raises on purpose."""


class InvalidInput(SafemarginError, ValueError):
    """A value that cannot be right."""


class MissingExtra(InvalidInput, ImportError):
    """An optional library is needed for what was asked."""

    def __init__(self, purpose: str, *, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional library: pip install 'safemargin[{extra}]'")
        self.purpose = purpose
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(MissingExtra, extra=self.extra), (self.purpose,)


class NoPictures(InvalidInput):
    """There is nothing to show of an episode; everything else of it can still be told."""


class EnvironmentFault(SafemarginError):
    """The environment broke its contract."""


class NotMeasurable(EnvironmentFault):
    """The doctor found no sound way to measure this environment."""


class PolicyFault(SafemarginError):
    """The policy broke its contract."""


class EngineFault(SafemarginError):
    """The machinery that runs rollouts failed, e.g. a worker process kept dying."""


class StudyError(SafemarginError):
    """A study on disk cannot serve the request."""


class StudyMismatch(StudyError):
    """Another policy, environment or settings than the study was made with."""


class StudyIncomplete(StudyError):
    """Not enough in the study yet for what was asked."""


class StudyExists(StudyError):
    """There is a study already where a new one was to be made."""


class StudyCorrupt(StudyError):
    """The study's database cannot be read."""


class StudyBusy(StudyError):
    """Another process is collecting into the study."""


class UntrustedCode(StudyError):
    """The study names code to run, and neither was it named by the user nor is it signed."""


class MarginsFileError(SafemarginError):
    """A margins file is unreadable, truncated or of an unknown version."""


class AuditLogError(SafemarginError):
    """The log of a watched fleet cannot be read, written or trusted."""


class OverseerLost(SafemarginError):
    """Whoever oversees the agent cannot be reached or wants it to stop: it must not act."""


def told(error: BaseException) -> str:
    """Somebody else's exception as part of a sentence, with the file and line it came from."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else said
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A closing sentence that suggests the nearest known names, or lists a few of them."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(lowered[match]) for match in close) + "?"
    if len(names) <= 12:
        return "known: " + ", ".join(names)
    return f"{len(names)} names are known, none is similar"
