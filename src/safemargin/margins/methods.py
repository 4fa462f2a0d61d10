"""The methods that fit an upper bound b(p, n) on the loss given the proxy, by name (paper § III-D).

| method | in short | bounds |
|---|---|---|
| calibrated | kernel percentile in the proxy's rank, conformally calibrated; the default | C_n |
| isotonic | the best rising percentile curve, calibrated alike | C_n |
| boosted | gradient-boosted percentiles (scikit-learn), calibrated alike | C_n |
| tolerance | binomial upper limit on the percentile in a forward window | C_n |
| paper | percentile of a 2d kernel density | each loss by itself |
| granted | cuts of the proxy's range, a promise about the margin itself | failing margins |

C_n is the largest loss over all n' ≤ n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal, get_args

import numpy.typing as npt

from safemargin.errors import InvalidInput
from safemargin.margins.bounds.boosted import boosted_curve
from safemargin.margins.bounds.calibrated import kernel_curve
from safemargin.margins.bounds.conformal import fit_calibrated_curve
from safemargin.margins.bounds.granted import fit_granted
from safemargin.margins.bounds.isotonic import isotonic_curve
from safemargin.margins.bounds.paper import fit_paper
from safemargin.margins.bounds.sample import Options, Sample
from safemargin.margins.bounds.table import Bound, Estimand, check_known
from safemargin.margins.bounds.tolerance import fit_tolerance

DEFAULT_METHOD = "calibrated"

METHODS: dict[str, Callable[[Sample, Options], Bound]] = {
    "calibrated": partial(fit_calibrated_curve, method="calibrated", curve=kernel_curve),
    "isotonic": partial(fit_calibrated_curve, method="isotonic", curve=isotonic_curve),
    # Fewer folds than the others: every fold takes one fit per n.
    "boosted": partial(fit_calibrated_curve, method="boosted", curve=boosted_curve, fold_count=3),
    "tolerance": fit_tolerance,
    "paper": fit_paper,
}
"""Name → fitter; `safemargin.margins.bounds` says how to add one."""

GRANTED = "granted"
"""The method behind the promise about the margin, which bounds no loss."""

Promise = Literal["bound", "margin"]
"""What is promised: that the loss stays under a bound, or that few granted margins fail."""


def check_promise(promise: str) -> None:
    """Raise InvalidInput for a promise that nobody can make."""
    check_known("the promise ", promise, get_args(Promise))


def method_for(promise: Promise, method: str) -> str:
    """Return the method that keeps a promise; a choice of method belongs to bounds only."""
    check_promise(promise)
    if promise == "bound":
        return method
    if method not in (DEFAULT_METHOD, GRANTED):
        raise InvalidInput(
            f"the method {method!r} fits a bound; the promise about the margin has its own method"
        )
    return GRANTED


def fit_bound(
    proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
    criticalities: npt.ArrayLike,  # [moments, n], or [moments, runs, n] for single runs
    n_values: Sequence[int],
    *,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    natural: npt.ArrayLike | None = None,  # [moments] of booleans; None: all of them are
    groups: npt.ArrayLike | None = None,  # [moments] of labels, e.g. episodes
    estimand: Estimand = "mean",
    **options: Any,
) -> Bound:
    """Fit the upper bound b(p, n) by the named method; the options are those of `Options`."""
    sample = Sample.from_arrays(
        proxies, criticalities, n_values, natural=natural, groups=groups, estimand=estimand
    )
    return fit_sample(sample, method=method, confidence=confidence, **options)


def fit_sample(
    sample: Sample, *, confidence: float = 0.95, method: str = DEFAULT_METHOD, **options: Any
) -> Bound:
    """`fit_bound` for a sample."""
    fitters = {**METHODS, GRANTED: fit_granted}
    check_known("the method ", method, fitters)
    known = {field.name for field in fields(Options)} - {"confidence"}
    for name in options:
        check_known("the option ", name, known)
    return fitters[method](sample, Options(confidence=float(confidence), **options))
