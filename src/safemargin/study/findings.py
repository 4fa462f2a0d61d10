"""Can a study's numbers be trusted? The findings of the doctor and of the data, as sentences."""

from __future__ import annotations

from safemargin.study.noise import describe_noise
from safemargin.study.plays import describe_plays
from safemargin.study.rare_losses import describe_rare_losses
from safemargin.study.status import Status
from safemargin.study.study import Study
from safemargin.validation.validating import Validation


def findings(study: Study, status: Status, validation: Validation | None) -> list[tuple[str, str]]:
    """Return level and text of the doctor's findings, then those about the data."""
    found = [(str(each["level"]), str(each["text"])) for each in study.diagnosis["findings"]]
    distinct = (
        f"{status.distinct_moments:,} of {status.chosen_moments:,} moments are distinct, from "
        f"{status.distinct_episodes:,} distinct episodes"
    )
    few = status.distinct_moments < 0.9 * status.chosen_moments
    found.append(("note" if few else "ok", distinct + ("; the rest are copies" if few else "")))
    few_plays = describe_plays(status.plays, status.chosen_moments)
    if few_plays:
        found.append(("note", few_plays))
    if status.estimates:
        found.append(
            ("problem", f"{status.capped:,} of {status.estimates:,} estimates hit the trial cap")
            if status.capped
            else ("ok", "no estimate hit the cap on trials")
        )
    if status.without_spread:
        text = (
            f"{status.without_spread:,} sampled estimates saw no spread at all: a loss rarer than "
            "one in that many trials may have been missed"
        )
        found.append(("note", text))
    rare_losses = describe_rare_losses(status.spread, status.resting_on_few)
    if rare_losses:
        found.append(("note", rare_losses))
    if noise := describe_noise(status.noise, study.settings):
        small, text = noise
        found.append(("ok" if small else "note", text))
    if validation is not None:
        found += _held_out(validation)
    return found


def _held_out(validation: Validation) -> list[tuple[str, str]]:
    """Return what held-out moments say about a fit."""
    found = []
    promised = 1 - validation.confidence
    for row in validation.chain:
        if row.phase != "natural" or row.failed.share is None:
            continue
        text = (
            f"at tolerance {row.tolerance:g}, {row.failed.count} of {row.failed.tested} unseen "
            f"natural moments broke their margin ({row.failed.share:.1%}, 95 % interval "
            f"{row.failed.low:.1%} to {row.failed.high:.1%}; {promised:.1%} was promised); "
            f"mean margin {row.mean_margin:.2f}"
        )
        found.append(("problem" if row.failed.low > promised else "ok", text))
    if validation.same_law is not None:
        p_value = validation.same_law.p_value
        differ = p_value < 0.05
        verdict = (
            "natural and spread moments lose differently given the proxy, so the calibration is "
            "in doubt"
            if differ
            else "no sign that natural and spread moments lose differently given the proxy"
        )
        found.append(("problem" if differ else "ok", f"{verdict} (p = {p_value:.3f})"))
    return found
