"""What the explorer sends to its page, as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from safemargin.core.plain import finite_or_none
from safemargin.core.records import Array
from safemargin.core.text import readable
from safemargin.errors import InvalidInput
from safemargin.replay.critical_moments import measured_losses
from safemargin.replay.recordings import Recording, Recordings
from safemargin.replay.summaries import steps_above_note
from safemargin.replay.whatif import describe_estimate
from safemargin.study.study import Study

MOST_SCORES = 64
"""With more scores than this per step, none are sent: a bar chart could not show them."""


def describe_study(study: Study, recordings: Recordings, start: tuple[str, int]) -> dict[str, Any]:
    """Describe the study, its episodes, and where to start."""
    status = study.status()
    has_lives = recordings.has_lives
    losses = measured_losses(study)
    return {
        "name": study.path.name,
        "path": str(study.path),
        "environment": study.environment["name"],
        "policy": study.policy["description"],
        "score_kind": study.policy["kind"],
        "first_action": study.environment.get("first_action", 0),
        "joint_actions": study.environment.get("joint_actions", []),
        "proxies": [{"name": name, "text": readable(name)} for name in study.proxies],
        "default_proxy": study.default_proxy,
        "n_values": list(study.settings.n_values),
        "horizon": study.settings.horizon,
        "measured": study.settings.measured.in_words(),
        "excluded_steps": study.settings.excluded_steps,
        "moments": dict(status.moments),
        "wanted": dict(status.wanted),
        "estimates_left": status.estimates_left,
        "start": {"episode": start[0], "step": start[1]},
        "has_lives": has_lives,
        "steps_above": steps_above_note(recordings.summaries()),
        "episodes": [
            {
                **asdict(summary),
                "title": summary.title(has_lives=has_lives),
                "measured_loss": asdict(losses[summary.name]) if summary.name in losses else None,
            }
            for summary in recordings.summaries()
        ],
    }


def describe_episode(recordings: Recordings, recording: Recording) -> dict[str, Any]:
    """Return all numbers of an episode, step by step, and what the study measured in it."""
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
        # Unrounded: a margin looked up on the page is the one of `safemargin margin`.
        "proxies": {name: values.tolist() for name, values in episode.proxies.items()},
        "moment": recordings.moment(recording.name),
        "measured": list(map(describe_estimate, recordings.measured(recording.name))),
        "regret": recordings.regret(recording.name),
    }


def starting_point(
    recordings: Recordings, name: str | None = None, step: int | None = None
) -> tuple[str, int]:
    """Return the episode and step to show first: the measured moment that loses most.

    Where no measured moment loses anything, it is the highest proxy in the measured range. If the
    environment has lives, a lost life then comes before others; without lives, an end may be a
    loss or a win, so the proxy alone decides.
    """
    if name is not None:
        chosen = recordings.summary(name)
        if step is not None and not 0 <= step <= chosen.steps:
            raise InvalidInput(
                f"there is no step {step:,} in {recordings.title(name)}; it has {chosen.steps:,}"
            )
        return chosen.name, chosen.peak_step if step is None else step
    summaries = recordings.summaries()
    if not summaries:
        return "", 0
    worst_measured, measured = next(iter(measured_losses(recordings.study).items()), ("", None))
    if measured is not None and measured.mean > 0:
        return worst_measured, measured.step
    able = [each for each in summaries if each.eligible] or summaries
    lost = [each for each in able if each.ended == "terminated" and recordings.has_lives]
    highest = max(lost or able, key=lambda each: (not each.beyond, each.peak_proxy))
    return highest.name, highest.peak_step


def short(values: Array, digits: int = 6) -> list[Any]:
    """Round numbers to what a chart can show; None for those that are not finite."""
    if values.ndim > 1:
        return [short(row, digits) for row in values]
    return [finite_or_none(float(f"{value:.{digits}g}")) for value in values.tolist()]
