"""Short clips around a study's most critical moments, and a contact sheet of them all."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.files import written_whole
from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, SafemarginError, StudyIncomplete
from safemargin.margins.bounds.table import check_confidence
from safemargin.margins.fitting import NoBound
from safemargin.margins.lookup import Lookup, Margins
from safemargin.policies.proxies import single_values
from safemargin.replay.captions import ClipPainter, contact_sheet
from safemargin.replay.critical_moments import measured_losses
from safemargin.replay.pictures import Camera, Picture
from safemargin.replay.recordings import Recording, Recordings
from safemargin.replay.situations import Situation, Situations
from safemargin.replay.summaries import steps_above_note
from safemargin.replay.video import find_ffmpeg, write_video
from safemargin.study.study import Study
from safemargin.validation.defaults import (
    default_confidence,
    default_tolerance,
    natural_moments_needed,
)

BEFORE, AFTER = 30, 45
"""Steps of a clip before and after its moment."""

HELD = 0.8
"""Seconds for which a clip pauses at its moment."""


@dataclass(frozen=True, slots=True)
class Highlight:
    """One moment worth watching."""

    episode: str
    step: int
    proxy: float
    margin: int | None
    """None where the study has no margins, so that the proxy alone decides."""
    loss: float | None = None
    """What was measured here, averaged over all n; None where nothing was."""
    outside: bool = False
    """The proxy lies above every measured one: the margin is 0 because nothing is known."""

    @property
    def caption(self) -> str:
        """The moment in a line or two, for people."""
        margin = "" if self.margin is None else f", margin {'?' if self.outside else self.margin}"
        above = "\nabove every measured proxy" if self.outside else ""
        measured = "" if self.loss is None else f"\nmeasured loss {self.loss:.3g}"
        return f"step {self.step:,}, proxy {self.proxy:.4g}{margin}{measured}{above}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WrittenHighlights:
    """The files written, in the order of the moments: most critical first."""

    clips: tuple[Path, ...]
    contact_sheet: Path
    moments: tuple[Highlight, ...]
    notes: tuple[str, ...]


def write_highlights(
    study: Study,
    folder: str | Path,
    *,
    top: int = 10,
    tolerance: float | None = None,
    confidence: float | None = None,
    apart: int = 60,
    progress: Progress | None = None,
) -> WrittenHighlights:
    """Write clips and a contact sheet of the `top` moments; create the folder if needed.

    Moments of one episode lie `apart` or more steps from one another. Without a `confidence`, it
    is the highest up to 0.95 that the natural moments suffice for.
    """
    for name, given in (("top", top), ("apart", apart)):
        if given < 1:
            raise InvalidInput(f"{name} must be at least 1, got {given}")
    if tolerance is not None and not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, got {tolerance:g}")
    find_ffmpeg()
    study.require_trust(policy=False)
    progress = progress or Silence()
    progress.stage("highlights", total=top, done=0)
    natural = study.status().moments["natural"]
    confidence = default_confidence(natural) if confidence is None else confidence
    check_confidence(confidence)
    margins, notes = _margins(study, confidence, natural)
    if tolerance is None:
        tolerance = default_tolerance(margins)
    recordings = Recordings(study)
    moments = choose_highlights(study, recordings, margins, tolerance, top=top, apart=apart)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{target} cannot be created: {error}") from error
    clips: list[Path] = []
    stills: list[tuple[Picture, str]] = []
    with contextlib.closing(Camera(study.environment_spec)) as camera:
        for number, moment in enumerate(moments, start=1):
            recording = recordings.open(moment.episode)
            clip = target / f"{number:02}-{moment.episode}-step-{moment.step}.mp4"
            title = recordings.title(moment.episode)
            values = recording.episode.proxies[study.default_proxy]
            granted = _lookup(margins, values, tolerance)
            picture = _film(camera, recording, moment, clip, title, single_values(values), granted)
            stills.append((picture, f"{title}\n{moment.caption}"))
            clips.append(clip)
            progress.advance(0)
    sheet = target / "contact-sheet.png"
    with written_whole(sheet) as whole:
        contact_sheet(stills).save(whole)
    above = None if margins is None else steps_above_note(recordings.summaries())
    if above is not None:
        notes = (*notes, above)
    if len(moments) < top:
        notes = (*notes, f"only {len(moments)} moments differ and lie {apart} or more steps apart")
    if older := sorted(set(target.glob("[0-9][0-9]-*-step-*.mp4")) - set(clips)):
        notes = (*notes, f"{len(older)} clips of an earlier run are still in {target}")
    return WrittenHighlights(tuple(clips), sheet, tuple(moments), notes)


def choose_highlights(
    study: Study,
    recordings: Recordings,
    margins: Margins | None,
    tolerance: float,
    *,
    top: int,
    apart: int,
) -> list[Highlight]:
    """Return the most critical steps that differ, apart from one another.

    First come measured moments that lose more than the tolerance, by their loss; then steps where
    nothing was measured, by margin and proxy. Steps above every measured proxy come last: nothing
    is known there, so no danger was found. The random opening and the last steps of an episode are
    left out, as in the study, and so is a moment in the situation of one already chosen.
    """
    measured = measured_losses(study)
    found: list[Highlight] = []
    situations = Situations()
    for summary in recordings.summaries():
        if not summary.eligible:
            continue
        values = recordings.open(summary.name).episode.proxies[study.default_proxy]
        proxies = single_values(values)
        granted = _lookup(margins, values, tolerance)
        ranks = np.zeros(summary.steps)  # infinity where nothing is known
        if granted is not None:
            ranks = np.where(granted.outside, np.inf, granted.margin)
        steps = np.arange(summary.opening, summary.steps - study.settings.excluded_steps)
        situations.note(proxies[steps])
        known = measured.get(summary.name)
        best: list[int] = []
        if known is not None and known.mean > 0 and known.largest > tolerance:
            best.append(known.step)
        for step in steps[np.lexsort((-proxies[steps], ranks[steps]))].tolist():
            if known is not None and step == known.step:
                continue
            if all(abs(step - other) >= apart for other in best):
                best.append(step)
            if len(best) == top:
                break
        found += [
            Highlight(
                episode=summary.name,
                step=step,
                proxy=float(proxies[step]),
                margin=None if granted is None else int(granted.margin[step]),
                loss=known.mean if known is not None and known.step == step else None,
                outside=granted is not None and bool(granted.outside[step]),
            )
            for step in best
        ]
    found.sort(key=_rank)
    if not found:
        raise StudyIncomplete(
            f"the study in {study.path} holds no episode with a step to show; "
            "run `safemargin collect` on it first"
        )
    openings = {summary.name: summary.opening for summary in recordings.summaries()}
    chosen: list[Highlight] = []
    for moment in found:
        if len(chosen) == top:
            break
        situation = Situation(
            time=moment.step - openings[moment.episode],
            proxy=moment.proxy,
            loss=moment.loss,
            scores=recordings.open(moment.episode).episode.scores[moment.step].tobytes(),
        )
        if situations.is_new(situation):
            chosen.append(moment)
    return chosen


def _rank(moment: Highlight) -> tuple[bool, bool, float, int, float]:
    """Sort key: measured moments by their loss, then others by margin and proxy."""
    loss = 0.0 if moment.loss is None else moment.loss
    return moment.loss is None, moment.outside, -loss, moment.margin or 0, -moment.proxy


def _film(
    camera: Camera,
    recording: Recording,
    moment: Highlight,
    path: Path,
    title: str,
    proxies: Floats,  # [steps]
    granted: Lookup | None,
) -> Picture:
    """Write one clip; return the picture of its moment."""
    first = max(0, moment.step - BEFORE)
    last = min(recording.episode.steps, moment.step + AFTER)
    pictures = [camera.look(recording, step) for step in range(first, last + 1)]
    texts = None
    if granted is not None:
        margins = zip(granted.margin.tolist(), granted.outside.tolist(), strict=True)
        texts = ["?" if outside else str(margin) for margin, outside in margins]
    painter = ClipPainter(
        title=f"{title}, step {{step}}",
        proxies=proxies[first : last + 1],
        margins=texts and texts[first : last + 1],
        first_step=first,
        moment=moment.step,
        size=(pictures[0].shape[0], pictures[0].shape[1]),
    )
    fps = camera.frames_per_second
    shown = [painter.paint(picture, step) for step, picture in enumerate(pictures, start=first)]
    cut = moment.step - first
    held = [shown[cut]] * round(HELD * fps)
    write_video(path, [*shown[:cut], *held, *shown[cut:]], fps=fps)
    return pictures[cut]


def _margins(
    study: Study, confidence: float, natural: int
) -> tuple[Margins | None, tuple[str, ...]]:
    """Return the study's margins, or None and the reason."""
    needed = natural_moments_needed(confidence)
    try:
        with warnings.catch_warnings(action="ignore", category=NoBound):
            margins = study.fit(confidence)
        if natural < needed:
            reason = (
                f"a confidence of {confidence:g} takes {needed} natural moments, "
                f"and there are {natural}"
            )
        elif margins.bound.unbounded < 1:
            return margins, ()
        else:
            reason = margins.notes[0]
    except SafemarginError as error:  # nothing measured yet, too few moments, equal proxies
        reason = str(error)
    return None, (f"no margins, so the proxy alone decides: {reason}",)


def _lookup(margins: Margins | None, values: Floats, tolerance: float) -> Lookup | None:
    """Return the margin at each step, and whether the proxy lies above every measured one."""
    if margins is None:
        return None
    # For a proxy that looks at n, the smallest n decides.
    outside = single_values(values) > margins.bound.grid[0, -1]
    return replace(margins.lookup(values, tolerance), outside=outside)
