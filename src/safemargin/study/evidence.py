"""Checks stored estimates against the raw returns that they were computed from.

A study keeps both, so an estimate that was edited contradicts the returns beside it.
"""

from __future__ import annotations

import math

import numpy as np

from safemargin.core.measured import RANDOM, parse_perturbation
from safemargin.core.records import Floats, Measurement
from safemargin.core.settings import Settings
from safemargin.criticality.plans import rule_of
from safemargin.criticality.stopping import FixedRule, RareLossRule, StoppingRule, WorstRule

TOLERANCE = 1e-6
"""How far a stored number may lie from the recomputed one, relative to it: other processors and
versions of libraries round differently, but by far less than this."""


def judge(rule: StoppingRule, losses: Floats) -> StoppingRule:
    """Give a rule the losses [trials] in index order until it stops, and return it."""
    for loss in losses.tolist():
        if rule.stopped:
            break
        rule.add(loss)
    return rule


def contradiction(measurement: Measurement, settings: Settings) -> str | None:
    """Return how an estimate contradicts its returns; None if they agree.

    The half-width under the plan `anytime` is only compared with the settings: a confidence
    sequence takes too long to compute for a whole study.
    """
    estimate, returns = measurement.estimate, measurement.perturbed
    count, kind = len(returns), parse_perturbation(settings.perturb).kind
    if estimate.n not in settings.n_values:
        return f"the study measures n = {', '.join(map(str, settings.n_values))} only"
    if returns.ndim != 1 or measurement.unperturbed.ndim != 1:
        return "its returns are not plain lists of numbers"
    if estimate.exact:
        # Every sequence of n actions was taken: a whole number to the power of n. A perturbation
        # that draws nothing has only one, under any plan.
        whole = round(count ** (1 / estimate.n)) ** estimate.n == count
        sole = kind not in (RANDOM, "worst")
        whole = count == 1 if sole else whole
        planned = settings.trial_plan == "fixed" or sole
        if not planned or len(measurement.unperturbed) > 1 or not whole:
            return f"it is called exact, which {count} trials cannot be here"
    worst = kind == "worst"
    anytime = settings.trial_plan == "anytime"
    rule = judge(
        WorstRule(settings, count)
        if worst
        else FixedRule(settings, count)
        if estimate.exact or anytime
        else rule_of(settings),
        measurement.unperturbed - returns,
    )
    half_width, sure, stopped = rule.half_width, rule.sure, rule.stopped
    if estimate.exact:
        half_width = 0.0
    if anytime:
        half_width = estimate.half_width
        sure = count >= settings.min_trials and 0 < half_width <= settings.sampling_error
        stopped = sure or count >= settings.max_trials
    if isinstance(rule, RareLossRule) and math.isclose(
        rule.students, estimate.half_width, rel_tol=TOLERANCE
    ):
        half_width = rule.students  # made by an earlier version
    if rule.trials < count or not stopped:
        return f"it has {count} trials, after which plan {settings.trial_plan!r} does not stop"
    # Rounding leaves rests of this size in sums of returns whose true value is 0.
    rest = 1e-12 * max(np.abs(returns).max(), np.abs(measurement.unperturbed).max())
    for name, said, found in (
        ("criticality", estimate.mean, rule.mean),
        ("half_width", estimate.half_width, half_width),
        ("unperturbed", estimate.unperturbed, float(np.mean(measurement.unperturbed))),
        ("capped", estimate.capped, not sure),
    ):
        if not math.isclose(said, found, rel_tol=TOLERANCE, abs_tol=rest):
            return f"its {name} is {said:g}, and its returns give {found:g}"
    return None
