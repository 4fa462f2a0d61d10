"""Which moments are the most critical, and those of a study with pictures.

Report, explorer and highlights share one definition: measured moments are ranked by their mean loss
over all n; where nothing was measured, a higher proxy is more critical.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from safemargin.core.plain import plain_values
from safemargin.core.records import Floats, Tuples
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.replay.recordings import Recordings
from safemargin.replay.stills import StillRequest, take_stills
from safemargin.replay.summaries import EpisodeSummary
from safemargin.study.study import Study


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """What random actions cost at the moment that the study chose in an episode."""

    step: int
    mean: float
    """Averaged over all n: what moments are ranked by."""
    largest: float
    """That of the n that costs most."""


def measured_losses(study: Study) -> dict[str, MeasuredLoss]:
    """Return what was measured in each episode, by its name; most critical first."""
    try:
        tuples = study.tuples()
    except StudyIncomplete:
        return {}
    keys, means, largest = tuples.keys, mean_losses(tuples), tuples.criticalities.max(axis=1)
    return {
        keys[row].id: MeasuredLoss(int(tuples.steps[row]), float(means[row]), float(largest[row]))
        for row in np.argsort(-means, kind="stable")
    }


def mean_losses(tuples: Tuples) -> Floats:
    """Return what measured moments are ranked by: the loss averaged over all n, [moments]."""
    return np.asarray(tuples.criticalities.mean(axis=1))


@dataclass(frozen=True, eq=False)
class CriticalMoment:
    """One measured moment."""

    episode: str
    title: str
    """The episode's name for people."""
    step: int
    steps: int
    """Length of its episode."""
    proxy: float | list[float]  # [n] where the proxy looks at n
    losses: list[float]  # [n] the mean loss for each n
    half_widths: list[float]  # [n]
    command: str
    """The command that opens this moment in the explorer."""
    picture: bytes | None = None
    """JPEG, or None where there is none."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the picture is a data URL."""
        shown = None
        if self.picture is not None:
            shown = "data:image/jpeg;base64," + base64.b64encode(self.picture).decode()
        half_widths = plain_values(self.half_widths)
        return {**vars(self), "half_widths": half_widths, "picture": shown}


def most_critical(study: Study, recordings: Recordings, top: int) -> list[CriticalMoment]:
    """Return the moments with the greatest loss, averaged over all n.

    Of identical moments, which agree in proxy and losses to the last bit, only one is kept.
    """
    by_name = {summary.name: summary for summary in recordings.summaries()}
    tuples = study.tuples()
    keys = tuples.keys
    found: list[CriticalMoment] = []
    seen: set[bytes] = set()
    for row in np.argsort(-mean_losses(tuples), kind="stable"):
        summary, step = by_name[keys[row].id], int(tuples.steps[row])
        proxy, losses = tuples.proxies[row], tuples.criticalities[row]
        looks = proxy.tobytes() + losses.tobytes()
        if len(found) == top:
            break
        if looks in seen:
            continue
        seen.add(looks)
        found.append(
            CriticalMoment(
                episode=summary.name,
                title=summary.title(has_lives=recordings.has_lives),
                step=step,
                steps=summary.steps,
                proxy=proxy.tolist(),
                losses=losses.tolist(),
                half_widths=tuples.half_widths[row].tolist(),
                command=_explore(study, recordings, summary, step),
            )
        )
    return found


def with_pictures(
    study: Study,
    recordings: Recordings,
    moments: list[CriticalMoment],
    advance: Callable[[], None],
) -> tuple[list[CriticalMoment], str | None]:
    """Return the moments with pictures, and why some are missing (None: none is)."""
    try:
        spec = study.environment_spec
    except InvalidInput as error:
        return moments, f"no pictures: {error}"
    wanted = [StillRequest(recordings.open(moment.episode), moment.step) for moment in moments]
    stills = take_stills(spec, wanted, advance)
    shown = [
        replace(moment, picture=still.jpeg) for moment, still in zip(moments, stills, strict=True)
    ]
    return shown, next((still.fault for still in stills if still.fault is not None), None)


def _explore(study: Study, recordings: Recordings, summary: EpisodeSummary, step: int) -> str:
    name = summary.name if recordings.has_lives else f'"{summary.phase} {summary.index}"'
    return f"safemargin explore {shlex.quote(str(study.path))} --episode {name} --step {step}"
