"""The most critical of a study's measured moments, with pictures."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from safemargin.core.plain import finite_or_none
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.replay.recordings import Recordings
from safemargin.replay.stills import StillRequest, take_stills
from safemargin.replay.summaries import EpisodeSummary
from safemargin.study.study import Study


@dataclass(frozen=True, eq=False)
class CriticalMoment:
    """One measured moment."""

    episode: str
    title: str
    """The episode's name for people."""
    step: int
    steps: int
    """Length of its episode."""
    proxy: float | Floats  # [n] where the proxy looks at n
    losses: Floats  # [n] the mean loss for each n
    half_widths: Floats  # [n]
    command: str
    """The command that opens this moment in the explorer."""
    picture: bytes | None = None
    """JPEG, or None where there is none."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the picture is a data URL."""
        shown = None
        if self.picture is not None:
            shown = "data:image/jpeg;base64," + base64.b64encode(self.picture).decode()
        return {
            "episode": self.episode,
            "title": self.title,
            "step": self.step,
            "steps": self.steps,
            "proxy": self.proxy.tolist() if isinstance(self.proxy, np.ndarray) else self.proxy,
            "losses": self.losses.tolist(),
            "half_widths": [finite_or_none(width) for width in self.half_widths.tolist()],
            "command": self.command,
            "picture": shown,
        }


def most_critical(study: Study, recordings: Recordings, top: int) -> list[CriticalMoment]:
    """Return the moments with the greatest loss, averaged over all n.

    Of identical moments, which agree in proxy and losses to the last bit, only one is kept.
    """
    by_name = {summary.name: summary for summary in recordings.summaries()}
    tuples = study.tuples()
    keys = tuples.keys
    found: list[CriticalMoment] = []
    seen: set[bytes] = set()
    for row in np.argsort(-tuples.criticalities.mean(axis=1), kind="stable"):
        summary, step = by_name[keys[row].id], int(tuples.steps[row])
        proxy = tuples.proxies[row]
        looks = np.asarray(proxy).tobytes() + tuples.criticalities[row].tobytes()
        if len(found) == top:
            break
        if looks in seen:
            continue
        seen.add(looks)
        found.append(
            CriticalMoment(
                episode=summary.name,
                title=recordings.title(summary.name),
                step=step,
                steps=summary.steps,
                proxy=float(proxy) if np.ndim(proxy) == 0 else np.asarray(proxy),
                losses=tuples.criticalities[row],
                half_widths=tuples.half_widths[row],
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
