"""The commands that compare checkpoints: gate and trace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from safemargin.cli import options
from safemargin.errors import EnvironmentFault, InvalidInput, SafemarginError, errors_as

if TYPE_CHECKING:
    from safemargin.validation.gate import GateResult

CANNOT_TELL = 3
"""The exit status of a gate that needs more moments; 1 means worse."""


@Parameter(name="*", group=options.group("What it writes"))
@dataclass(frozen=True, kw_only=True)
class GateFiles:
    """Files for continuous integration."""

    report: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """old beside new as one self-contained HTML file"""
    junit: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """JUnit XML with one case a check"""
    summary: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """a Markdown summary, added to the end of the file: $GITHUB_STEP_SUMMARY"""
    report_only: bool = False
    """exit with 0 whatever the verdict, also where nothing could be compared"""


@options.app.command(group=options.MARGINS)
def gate(
    candidate: Annotated[
        Path, Parameter(name="STUDY", help="the new checkpoint's study (or a file of its own)")
    ],
    /,
    *,
    baseline: Annotated[Path | None, Parameter(metavar="STUDY|FILE")] = None,
    save_baseline: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    tolerance: options.Numbers | None = None,
    call_at: Annotated[int | None, Parameter(metavar="N")] = None,
    matters: Annotated[tuple[str, ...], Parameter(metavar="CHECK=VALUE")] = (),
    worst: Annotated[float, Parameter(metavar="SHARE")] = 0.05,
    confidence: Annotated[float | None, Parameter(metavar="β")] = None,
    error_rate: Annotated[float, Parameter(metavar="RATE")] = 0.05,
    proxy: Annotated[str | None, Parameter(metavar="NAME")] = None,
    other_versions: bool = False,
    files: GateFiles = GateFiles(),
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> int:
    """Compare a new checkpoint with an old one: is the agent worse than it was?

    Collect both with the same settings and the same --seed: then both agents meet the same starts,
    and few moments show a small change.

    For example:

        safemargin gate runs/old --save-baseline baseline.json
        safemargin gate runs/new --baseline baseline.json --report gate.html
        safemargin gate runs/new --baseline runs/old --perturb stuck --signal cost

    Exit status: 0 passed; 1 worse; 2 bad input; 3 cannot tell yet (it says how many more moments
    would decide).

    Args:
        baseline: the old checkpoint: its study, or the file that --save-baseline wrote
        save_baseline: write what a later gate needs of STUDY: small, and fit for a repository; with
            --baseline, only if STUDY passes
        tolerance: losses you accept, in reward units (default: one that tells the old agent's
            moments apart)
        call_at: decisions that afford fewer random actions than N count as critical, and those with
            a lower margin as called (default: 2)
        matters: the smallest change that matters to a check, as a number or a share of the old
            value, e.g. return=5% or critical=0.02; checks: return, affordable, critical, called,
            worst, margins, drift; may be repeated
        worst: compare the mean loss over this share of the moments
        confidence: β of the margins (default: the highest up to 0.95 that the moments suffice for)
        error_rate: the chance that any check says "worse" of an agent that is no worse
        proxy: the proxy of the margins (default: the one that the moments were spread over)
        other_versions: compare studies made with other versions of libraries
    """
    asked: dict[str, Any] = {
        "tolerances": tolerance,
        "call_at": call_at,
        "matters": _pairs(matters),
        "worst": worst,
        "confidence": confidence,
        "error_rate": error_rate,
        "other_versions": other_versions,
        "about": (about.perturb, about.signal),
    }
    try:
        # A fault of the gate itself must not read as "worse".
        with errors_as(InvalidInput, "nothing was compared:"):
            result = None
            if baseline is not None or save_baseline is None:
                result = _compare(candidate, baseline, proxy, asked, files)
            if save_baseline is not None and (result is None or result.verdict == "passed"):
                _save(candidate, save_baseline, proxy, about)
    except SafemarginError as error:
        return _report_failure(error, files, as_json=as_json)
    if result is None:
        written = [] if save_baseline is None else [save_baseline]
        options.print_written({"baseline": str(save_baseline)}, written, as_json=as_json)
        return options.OK
    if save_baseline is not None and result.verdict != "passed":
        options.print_note(f"{save_baseline} was not written, because STUDY did not pass")
    return _answer(result, files, as_json=as_json)


def _answer(result: GateResult, files: GateFiles, *, as_json: bool) -> int:
    """Print what was found; return the exit status."""
    from safemargin.cli.show_gate import print_gate

    options.print_answer(result, print_gate, as_json=as_json)
    if files.report_only:
        return options.OK
    return {"passed": options.OK, "worse": options.FINDING}.get(result.verdict, CANNOT_TELL)


def _report_failure(error: SafemarginError, files: GateFiles, *, as_json: bool) -> int:
    """Write why nothing was compared; raise it unless the gate only reports."""
    from safemargin.validation.gate_files import failed_junit, failed_markdown

    reason = str(error)
    try:
        if files.junit is not None:
            _write(files.junit, failed_junit(reason))
        if files.summary is not None:
            _write(files.summary, failed_markdown(reason), mode="a")
    except InvalidInput as other:
        reason = reason if str(other) in reason else f"{reason}; {other}"
    if not files.report_only:
        # The exit status of an EnvironmentFault would read as "worse".
        if isinstance(error, EnvironmentFault) or reason != str(error):
            raise InvalidInput(reason) from error
        raise error
    if as_json:
        options.print_json({"error": reason, "kind": type(error).__name__})
    print(f"safemargin: {reason}", file=sys.stderr)
    return options.OK


def _save(study: Path, file: Path, proxy: str | None, about: options.About) -> None:
    from safemargin.study.gating import read_checkpoint

    options.note_new_parents(file)
    found = read_checkpoint(study, proxy, about=(about.perturb, about.signal))
    _make_parent(file)
    found.save(file)


def _compare(
    candidate: Path,
    baseline: Path | None,
    proxy: str | None,
    asked: dict[str, Any],
    files: GateFiles,
) -> GateResult:
    """Compare, and write the files that were asked for."""
    from safemargin.study.gating import compared
    from safemargin.validation.gate_files import junit, markdown
    from safemargin.web.gate_report import gate_page

    if baseline is None:
        raise InvalidInput(
            "name the old checkpoint with --baseline STUDY|FILE, or a file to write with "
            "--save-baseline FILE"
        )
    result, old, new = compared(candidate, baseline, proxy=proxy, **asked)
    if files.report is not None:
        _write(files.report, gate_page(result, old, new))
    if files.junit is not None:
        _write(files.junit, junit(result))
    if files.summary is not None:
        _write(files.summary, markdown(result), mode="a")
    return result


def _write(path: Path, text: str, *, mode: Literal["w", "a"] = "w") -> None:
    _make_parent(path)
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path.parent} cannot be made: {error.strerror}") from error


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """Read CHECK=VALUE pairs."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--matters {text!r} must look like CHECK=VALUE, e.g. return=5%")
        found[name.strip()] = value
    return found
