"""Margins fitted to a study, their validation, and the comparison of methods and proxies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safemargin.core.progress import Progress
from safemargin.core.records import PHASES, Tuples
from safemargin.core.settings import Settings
from safemargin.core.version import __version__
from safemargin.criticality.stopping import student_quantile
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.fitting import margins_from_sample
from safemargin.margins.learned.probe import LEARNED
from safemargin.margins.lookup import Margins
from safemargin.study.learning import relearner, stored_probe
from safemargin.study.store import Store
from safemargin.study.tuples import read_natural_proxies
from safemargin.validation.comparison import Comparison, compare_tuples
from safemargin.validation.validating import Validation, validate_tuples


def minimum_bandwidth(settings: Settings) -> float:
    """Return the lower limit of the paper's vertical bandwidth, ε̂_sampling / t_α; 0 without ε̂."""
    if settings.trial_plan == "fixed":
        return 0.0
    return settings.sampling_error / student_quantile(settings.sampling_confidence, 10**9)


def fit_study(
    store: Store,
    tuples: Tuples,
    estimand: Estimand,
    confidence: float,
    method: str,
    **options: Any,
) -> Margins:
    """Fit margins to a study's moments, and say in them whose they are."""
    settings = store.settings()
    measured = settings.measured
    without_folder = {}
    if not measured.usual:
        without_folder = {"perturb": measured.perturb, "reference": measured.reference}
    environment, policy = store.meta("environment"), store.meta("policy")
    about: dict[str, Any] = {
        "proxy": tuples.proxy,
        "environment": {name: environment[name] for name in ("name", "identity", "arguments")},
        "policy": {name: policy[name] for name in ("description", "identity", "kind")},
        "settings": store.meta("settings") | without_folder,
        "measured": measured,
        "counts": {
            **{phase: int((tuples.phases == phase).sum()) for phase in PHASES},
            "trials": int(tuples.trials.sum()),
        },
        "probe": stored_probe(store) if tuples.proxy == LEARNED else None,
        "created_by": f"safemargin fit, safemargin {__version__}",
    }
    return margins_from_sample(
        Sample.from_tuples(tuples, estimand),
        confidence,
        method,
        natural_proxies=read_natural_proxies(store, settings, tuples.proxy),
        about=about,
        minimum_bandwidth=minimum_bandwidth(settings),
        **options,
    )


def validate_study(
    store: Store, tuples: Tuples, *, confidence: float, **options: Any
) -> Validation:
    """Validate on a study's moments; a learned proxy is learned anew without each fold."""
    settings = store.settings()
    relearn = None
    if tuples.proxy == LEARNED:
        relearn = relearner(store, settings, tuples, confidence)
    return validate_tuples(
        tuples,
        relearn=relearn,
        confidence=confidence,
        minimum_bandwidth=minimum_bandwidth(settings),
        **options,
    )


def compare_study(
    store: Store, every: Sequence[Tuples], progress: Progress, **options: Any
) -> Comparison:
    """Compare all methods with proxies, whose tuples these are."""

    def step(done: int, total: int) -> None:
        if done == 1:
            progress.stage("compare", total=total, done=0)
        progress.advance(0)

    bandwidth = minimum_bandwidth(store.settings())
    return compare_tuples(every, minimum_bandwidth=bandwidth, progress=step, **options)
