"""Every exception safemargin raises on purpose.

SafemarginError
├── InvalidInput            a value that cannot be right: tolerance below 0, an unknown name
│   ├── MissingExtra        an optional library is needed; the message is the line that installs it
│   └── NoPictures          the environment cannot be made here, or draws nothing
├── EnvironmentFault        the environment broke its contract: NaN reward, an exception, …
│   ├── NotMeasurable       the doctor found no sound way to measure this environment
│   └── DiagnosisWrong      measuring showed what the doctor had not seen
├── EngineFault             workers kept dying, or a cluster cannot be used
├── PolicyFault             the policy broke its contract: NaN scores, wrong shape, …
├── StudyError              a study on disk cannot serve the request
│   ├── StudyMismatch       it was made with another policy, environment or settings
│   ├── StudyIncomplete     it does not hold enough yet for what was asked
│   ├── StudyExists         a new one was to be made where there is one already
│   ├── StudyCorrupt        the database cannot be read
│   ├── StudyBusy           another process is collecting into it
│   └── UntrustedCode       it names code to run that the user did not name
├── MarginsFileError        margins.json is unreadable, truncated or of an unknown version
├── BaselineFileError       baseline.json is unreadable, truncated or of an unknown version
├── GateClosed              a gate did not let a checkpoint pass: it is worse, or cannot tell
├── AuditLogError           the log of a watched fleet cannot be read or written
│   └── AuditLogAltered     it was altered after it was written
└── OverseerLost            whoever oversees the agent cannot be reached, so it must stop

The command line prints any of them as one sentence and exits with status 2
(NotMeasurable is a finding: status 1).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import traceback
from collections.abc import Iterable, Iterator
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
    """An episode cannot be shown in pictures; everything else about it can still be reported."""


class EnvironmentFault(SafemarginError):
    """The environment broke its contract."""


class NotMeasurable(EnvironmentFault):
    """The doctor found no sound way to measure this environment."""


class DiagnosisWrong(EnvironmentFault):
    """Measuring showed what the doctor had not seen.

    `cause` says what was seen, and `correction` holds the fields of the diagnosis that are wrong,
    with the values that are right.
    """

    def __init__(self, cause: str, advice: str, **correction: Any) -> None:
        super().__init__(f"{cause}; {advice}")
        self.cause = cause
        self.advice = advice
        self.correction = correction

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(DiagnosisWrong, **self.correction), (self.cause, self.advice)


class PolicyFault(SafemarginError):
    """The policy broke its contract."""


class EngineFault(SafemarginError):
    """The machinery that runs rollouts failed, e.g. a worker process kept dying."""


class StudyError(SafemarginError):
    """A study on disk cannot serve the request."""


class StudyMismatch(StudyError):
    """The study was made with another policy, environment or settings."""


class StudyIncomplete(StudyError):
    """The study does not hold enough yet for what was asked."""


class StudyExists(StudyError):
    """A new study was to be made where there is one already."""


class StudyCorrupt(StudyError):
    """The study's database cannot be read."""


class StudyBusy(StudyError):
    """Another process is collecting into the study."""


class UntrustedCode(StudyError):
    """The study names code to run that the user did not name, and it is not signed."""


class MarginsFileError(SafemarginError):
    """A margins file is unreadable, truncated or of an unknown version."""


class BaselineFileError(SafemarginError):
    """A baseline file is unreadable, truncated or of an unknown version."""


class GateClosed(SafemarginError, AssertionError):
    """A gate did not let a checkpoint pass: it is worse, or the data cannot tell."""


class AuditLogError(SafemarginError):
    """The log of a watched fleet cannot be read or written."""


class AuditLogAltered(AuditLogError):
    """The log of a watched fleet was altered after it was written."""


class OverseerLost(SafemarginError):
    """Whoever oversees the agent cannot be reached or wants it to stop, so it must not act."""


def describe_error(error: BaseException) -> str:
    """Put an exception of other code into one line, with the file and line it came from."""
    text = " ".join(str(error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        described += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return described


@contextlib.contextmanager
def errors_as(kind: type[SafemarginError], text: str) -> Iterator[None]:
    """Raise any exception of other code as one of ours: `text`, followed by its description."""
    try:
        yield
    except SafemarginError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{text} {describe_error(error)}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names, or list a few of them, as the end of an error message."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(lowered[match]) for match in close) + "?"
    if len(names) <= 12:
        return "known: " + ", ".join(names)
    return f"{len(names)} names are known, none is similar"
