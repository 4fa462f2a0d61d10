"""What the explorer's page is told, as plain values for JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from safemargin.core.records import Array
from safemargin.errors import InvalidInput
from safemargin.replay.recordings import Recording, Recordings
from safemargin.replay.summaries import told_above
from safemargin.study.plot_info import readable
from safemargin.study.study import Study

MOST_SCORES = 64
"""Scores of a step beyond this many are not sent: no chart of bars shows them."""


def describe_study(study: Study, recordings: Recordings, start: tuple[str, int]) -> dict[str, Any]:
    """What was studied, its episodes, and where to begin."""
    status = study.status()
    has_lives = recordings.has_lives
    return {
        "name": study.path.name,
        "path": str(study.path),
        "environment": study.environment["name"],
        "arguments": study.environment["arguments"],
        "policy": study.policy["description"],
        "score_kind": study.policy["kind"],
        "first_action": study.environment.get("first_action", 0),
        "proxies": [{"name": name, "text": readable(name)} for name in study.proxies],
        "default_proxy": study.default_proxy,
        "n_values": list(study.settings.n_values),
        "gamma": study.settings.gamma,
        "horizon": study.settings.horizon,
        "excluded_steps": study.settings.excluded_steps,
        "moments": dict(status.moments),
        "wanted": dict(status.wanted),
        "estimates_left": status.estimates_left,
        "start": {"episode": start[0], "step": start[1]},
        "has_lives": has_lives,
        "steps_above": told_above(recordings.outlines()),
        "episodes": [
            {**outline.to_dict(), "title": outline.title(has_lives=has_lives)}
            for outline in recordings.outlines()
        ],
    }


def describe_episode(recordings: Recordings, recording: Recording) -> dict[str, Any]:
    """All numbers of an episode, step by step, and what the study measured in it."""
    episode = recording.episode
    scores = episode.scores.reshape(episode.steps, -1)
    return {
        "name": recording.name,
        "seed": episode.seed,
        "opening": episode.opening,
        "steps": episode.steps,
        "rewards": short(episode.rewards),
        "actions": episode.actions.tolist(),
        "scores": short(scores) if scores.shape[1] <= MOST_SCORES else None,
        "score_shape": list(episode.scores.shape[1:]),
        # Not shortened: a margin looked up on the page is the one of `safemargin margin`.
        "proxies": {name: values.tolist() for name, values in episode.proxies.items()},
        "moment": recordings.moment(recording.name),
        "measured": [
            {
                "n": found.estimate.n,
                "mean": found.estimate.mean,
                "half_width": _finite(found.estimate.half_width),
                "exact": found.estimate.exact,
            }
            for found in recordings.measured(recording.name)
        ],
    }


def starting_place(
    recordings: Recordings, name: str | None = None, step: int | None = None
) -> tuple[str, int]:
    """An episode and the step to look at first: where the proxy is highest in the measured range.

    Where nobody names an episode and the environment has lives, one that was lost comes before one
    that was not; elsewhere an end does not tell a loss from a win, and the proxy alone decides.
    """
    outlines = recordings.outlines()
    if name is not None:
        chosen = next(each for each in outlines if each.name == name)
        if step is not None and not 0 <= step <= chosen.steps:
            raise InvalidInput(
                f"there is no step {step:,} in {recordings.title(name)}; it has {chosen.steps:,}"
            )
        return chosen.name, chosen.peak_step if step is None else step
    if not outlines:
        return "", 0
    able = [each for each in outlines if each.eligible] or outlines
    lost = [each for each in able if each.ended == "terminated" and recordings.has_lives]
    worst = max(lost or able, key=lambda each: (not each.beyond, each.peak_proxy))
    return worst.name, worst.peak_step


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def short(values: Array, digits: int = 6) -> list[Any]:
    """Numbers with as many digits as a chart can show; None for what is not finite."""
    if values.ndim > 1:
        return [short(row, digits) for row in values]
    return [
        _finite(float(f"{value:.{digits}g}"))
        for value in np.asarray(values, dtype=np.float64).tolist()
    ]
