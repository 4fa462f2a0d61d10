"""Recomputes a study's estimates as if fewer trials had been made; all raw returns are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from safemargin.core.records import EpisodeKey, Floats
from safemargin.core.settings import Settings
from safemargin.criticality.plans import rule_of
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.study.evidence import judge
from safemargin.study.store import Store

TRIAL_FIELDS = (
    "trial_plan",
    "trials",
    "sampling_error",
    "sampling_confidence",
    "min_trials",
    "max_trials",
    "largest_loss",
    "smallest_loss",
)


def read_under(store: Store, moments: Sequence[EpisodeKey], plan: Settings) -> Floats:
    """Return the estimates that `plan` would have given, from the trials that the study holds.

    They are [moments, n, 3]: criticality, half-width and number of trials of each.
    Only trials that were drawn independently can be stopped earlier: stratified ones (plan `fixed`)
    belong together.
    """
    if not isinstance(plan, Settings):
        raise InvalidInput(f"plan must be Settings, got {plan!r}")
    made_with = store.settings()
    for name, value in asdict(plan).items():
        if name not in TRIAL_FIELDS and value not in (
            getattr(made_with, name),
            getattr(Settings, name, None),
        ):
            raise InvalidInput(
                f"a study can be read under other trials, not under another {name} "
                f"({value}, not {getattr(made_with, name)})"
            )
    if made_with.trial_plan == "fixed":
        raise InvalidInput(
            "the trials of this study are stratified (trial_plan='fixed') and belong together; "
            "only a study with independent trials ('paper', 'rule-of-three' or 'anytime') can be "
            "read under another plan"
        )
    table = np.empty((len(moments), len(made_with.n_values), 3))
    for row, key in enumerate(moments):
        for column, measurement in enumerate(store.measurements(key)):
            if measurement.estimate.exact:  # a perturbation that draws nothing takes one trial
                table[row, column] = measurement.estimate.mean, 0.0, 1
                continue
            losses = measurement.unperturbed - measurement.perturbed  # [trials]
            rule = judge(rule_of(plan), losses)
            if not rule.stopped:
                raise StudyIncomplete(
                    f"the study in {store.folder} holds {len(losses)} trials of {key} for n = "
                    f"{measurement.estimate.n}, "
                    f"which are not enough for plan {plan.trial_plan!r} with these settings"
                )
            table[row, column] = rule.mean, rule.half_width, rule.trials
    return table
