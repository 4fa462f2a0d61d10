"""A study as one self-contained page: what was measured, whether to trust it, what it found."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from safemargin.core.files import written_whole
from safemargin.core.measured import Measured
from safemargin.core.plain import plain_values
from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Floats
from safemargin.core.text import duration, readable
from safemargin.core.version import __version__
from safemargin.errors import InvalidInput, SafemarginError
from safemargin.margins.fitting import NoBound
from safemargin.replay.critical_moments import CriticalMoment, most_critical, with_pictures
from safemargin.replay.recordings import Recordings
from safemargin.study.findings import findings
from safemargin.study.plot_info import kde_info
from safemargin.study.status import Status
from safemargin.study.study import Study
from safemargin.web.margin_tables import MarginTables, margin_tables
from safemargin.web.pages import page, plotly_script

Found = TypeVar("Found")

SCRIPTS = ("margins", "charts", "words", "glossary", "report")


@dataclass(frozen=True, eq=False)
class ReportInfo:
    """Everything a report shows; None where the study holds too little for it."""

    facts: tuple[tuple[str, str], ...]
    """Name and value, line by line."""
    findings: tuple[tuple[str, str], ...]
    """'ok', 'note' or 'problem', and a sentence on whether the numbers can be trusted."""
    measured: Measured
    tables: MarginTables
    densities: dict[str, Any] | None
    comparison: dict[str, Any] | None
    moments: tuple[CriticalMoment, ...]
    natural_proxies: Floats  # [natural moments], or [natural moments, n]
    notes: tuple[str, ...]
    """What is missing, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **vars(self),
            "measured": self.measured.in_words(),
            "tables": self.tables.to_dict(),
            "proxy_text": readable(self.tables.proxy),
            "moments": [moment.to_dict() for moment in self.moments],
            "natural_proxies": self.natural_proxies.tolist(),
        }


@dataclass(frozen=True)
class WrittenReport:
    """The path of a report, and what is missing from it."""

    path: Path
    notes: tuple[str, ...]


def write_report(
    study: Study, path: str | Path, *, top: int = 10, progress: Progress | None = None
) -> WrittenReport:
    """Write the report as one HTML file that needs nothing else."""
    script = plotly_script()  # MissingExtra before anything is computed
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder; name the report's file, e.g. report.html")
    info = report_info(study, top=top, progress=progress)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as file:
            file.write_text(report_page(info, script), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error}") from error
    return WrittenReport(target, info.notes)


def report_info(study: Study, *, top: int = 10, progress: Progress | None = None) -> ReportInfo:
    """Collect what a report shows; an unfinished study says what is missing."""
    if top < 0:
        raise InvalidInput(f"top must be at least 0, got {top}")
    study.require_trust(policy=False)  # before anything is computed
    progress = progress or Silence()
    progress.stage("report", total=4 + top, done=0)
    status = study.status()
    notes = _what_is_missing(status)
    recordings = Recordings(study)
    missing: dict[str, list[str]] = {}  # reason → parts of the report

    def attempt(what: str, work: Callable[[], Found]) -> Found | None:
        try:
            with warnings.catch_warnings(action="ignore", category=NoBound):
                return work()
        except SafemarginError as error:
            missing.setdefault(str(error), []).append(what)
            return None
        finally:
            progress.advance(0)

    tables = margin_tables(study)
    if tables.note is not None and any(status.moments.values()):
        missing[tables.note] = ["margins"]
    tuples = study.tuples()
    progress.advance(0)
    level = tables.confidence
    densities = comparison = validation = None
    moments: list[CriticalMoment] = []
    if sum(status.moments.values()):
        densities = attempt("densities", lambda: _densities(study, level))
        validation = attempt("held-out check", lambda: study.validate(level))
        comparison = attempt("comparison of proxies", lambda: _comparison(study, tables))
        moments = most_critical(study, recordings, top)
        moments, fault = with_pictures(study, recordings, moments, lambda: progress.advance(0))
        notes += [f"no {_listed(lacking)}: {reason}" for reason, lacking in missing.items()]
        if fault is not None:
            notes.append(fault)
    return ReportInfo(
        facts=tuple(_facts(study, status)),
        findings=tuple(findings(study, status, validation)),
        measured=study.settings.measured,
        tables=tables,
        densities=densities,
        comparison=comparison,
        moments=tuple(moments),
        natural_proxies=tuples.proxies[tuples.phases == "natural"],
        notes=tuple(notes),
    )


def report_page(info: ReportInfo, plotly: str) -> str:
    """Return the page with all scripts, styles, numbers and pictures inside."""
    # No '<' in the data: it could end the script element.
    data = json.dumps(plain_values(info.to_dict()), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "STYLE": page("style.css") + page("report.css"),
        "PLOTLY": plotly,
        "SCRIPTS": "\n".join(page(f"{name}.js") for name in SCRIPTS),
        "DATA": data,
    }
    whole = page("report.html")
    for name, text in parts.items():
        whole = whole.replace(f"@@{name}@@", text, 1)
    return whole


def _facts(study: Study, status: Status) -> list[tuple[str, str]]:
    environment, policy, settings = study.environment, study.policy, study.settings
    arguments = ", ".join(f"{name}={value}" for name, value in environment["arguments"].items())
    versions = study.store.meta("versions") or {}
    trials = (
        f"{settings.trials} trials for each n, or every action sequence where there are few"
        if settings.trial_plan == "fixed"
        else f"plan {settings.trial_plan}, until the mean is known to ±{settings.sampling_error:g}"
    )
    return [
        ("environment", environment["name"] + (f" ({arguments})" if arguments else "")),
        ("environment hash", environment["identity"]),
        ("policy", f"{policy['description']} ({policy['kind']} scores)"),
        ("policy hash", policy["identity"]),
        (
            "perturbations",
            f"n = {', '.join(map(str, settings.n_values))} {settings.measured.mistakes}",
        ),
        *([] if settings.measured.usual else [("losses", settings.measured.loss)]),
        ("trials", f"{status.trials:,}: {trials}"),
        ("discount factor γ", f"{settings.gamma:g}, a horizon of {settings.horizon} steps"),
        ("action choice", settings.action_choice),
        ("random opening", f"up to {settings.opening} steps" if settings.opening else "none"),
        ("seed", str(settings.seed)),
        ("moments", ", ".join(f"{count:,} {phase}" for phase, count in status.moments.items())),
        *([("regret", str(status.regret))] if status.regret is not None else []),
        (
            "cost",
            f"{status.simulator_steps:,} simulator steps, "
            f"{duration(status.worker_seconds)} of worker time",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("made with", f"safemargin {__version__} from {study.path.name}/"),
    ]


def _what_is_missing(status: Status) -> list[str]:
    if not status.episodes:
        return ["the study is empty: run `safemargin collect` on it"]
    if not status.estimates_left:
        return []
    measured = ", ".join(
        f"{done:,} of {status.wanted[phase]:,} {phase}" for phase, done in status.moments.items()
    )
    return [
        f"the study is not finished: {measured} moments are measured for every n, "
        f"{status.estimates_left:,} estimates are left; run the same `safemargin collect` again"
    ]


def _listed(names: list[str]) -> str:
    """Join names: 'margins', 'margins or densities', 'margins, densities or comparison'."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _densities(study: Study, confidence: float) -> dict[str, Any]:
    """Return the densities with one byte per cell, which is as fine as the eye can see."""
    info = kde_info(
        study.tuples(), confidence=confidence, minimum_bandwidth=study.minimum_bandwidth, bins=120
    )
    panels = []
    for panel in info.panels:
        weights = panel.density.weights
        top = max(float(np.quantile(weights, 0.995)), 0.01 * float(weights.max()), 1e-300)
        shade = np.sqrt(np.minimum(weights, top) / top) * 255
        panels.append(
            {
                "n": panel.n,
                "proxy": _rounded(panel.density.proxy),
                "criticality": _rounded(panel.density.criticality),
                "rows": list(weights.shape),
                "shade": base64.b64encode(shade.astype(np.uint8).tobytes()).decode(),
                "mean": _rounded(panel.mean),
                "median": _rounded(panel.median),
                "percentile": _rounded(panel.percentile),
                "x": _rounded(panel.proxies),
                "y": _rounded(panel.criticalities),
            }
        )
    return {"confidence": info.confidence, "dropped": info.dropped, "panels": panels}


def _comparison(study: Study, tables: MarginTables) -> dict[str, Any]:
    tolerance = tables.tolerance or 1.0
    comparison = study.compare(tables.confidence, methods=["calibrated"], tolerances=[tolerance])
    return {
        "confidence": comparison.confidence,
        "tolerance": tolerance,
        "natural_moments": comparison.natural_moments,
        "candidates": [
            {
                "proxy": each.proxy,
                "text": readable(each.proxy),
                "coverage": each.coverage.share,
                "worst_part": each.worst_part.share,
                "broken": each.chain_failures[0].share,
                "mean_margin": each.mean_margins[0],
                "holds": each.holds,
                "undecided": each in comparison.undecided[0],
            }
            for each in comparison.candidates
        ],
    }


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in np.asarray(values).ravel().tolist()]
