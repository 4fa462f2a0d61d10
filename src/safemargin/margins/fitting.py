"""Fitting margins to measured moments: a bound of the chosen method, and whose margins it gives."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD, fit_sample
from safemargin.margins.natural_proxies import summarise


class NoBound(UserWarning):
    """The data allow no bound in a part of the proxy's range; the margin is 0 there."""


def fit_margins(
    proxies: npt.ArrayLike,  # [moments], or [moments, n] for a proxy that looks at n
    criticalities: npt.ArrayLike,  # [moments, n], or [moments, runs, n] for single runs
    n_values: Sequence[int],
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    *,
    natural: npt.ArrayLike | None = None,  # [moments] of booleans; None: all of them are
    groups: npt.ArrayLike | None = None,  # [moments] of labels; None: each moment by itself
    estimand: Estimand = "mean",
    natural_proxies: npt.ArrayLike | None = None,  # [episodes]; None: those of natural moments
    proxy: str = "proxy",
    environment: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    counts: Mapping[str, int] | None = None,
    created_by: str = "safemargin.fit_margins",
    **options: Any,
) -> Margins:
    """Fit margins to measured moments: the proxy at each, and its true criticality for each n.

    `natural` marks the moments that were drawn as the agent meets them, not spread over the
    proxy's range on purpose: the confidence is calibrated on these. `groups` labels the episode of
    each moment; moments of one episode are never split between fitting and calibrating. `estimand`
    "single-run" bounds what one run loses instead of the mean, and takes the losses of single
    runs. `natural_proxies` holds the proxy at one random decision of each episode, by which a
    monitor notices when live values differ. `proxy`, `environment`, `policy`, `settings`, `counts`
    and `created_by` are stored with the margins. Further options are those of
    `safemargin.margins.bounds.sample.Options`.

    How far `confidence` can be relied on depends on the method: see `safemargin.margins.methods`
    and `margins.bound.details["guarantee"]`. Where the data allow no bound at this confidence, the
    margin is 0 and a `NoBound` warning says how many moments are needed.
    """
    sample = Sample.from_arrays(
        proxies, criticalities, n_values, natural=natural, groups=groups, estimand=estimand
    )
    return margins_from_sample(
        sample,
        confidence,
        method,
        natural_proxies=natural_proxies,
        about={
            "proxy": proxy,
            "environment": dict(environment or {}),
            "policy": dict(policy or {}),
            "settings": dict(settings or {}),
            "counts": {"moments": sample.moment_count} if counts is None else dict(counts),
            "created_by": created_by,
        },
        **options,
    )


def margins_from_sample(
    sample: Sample,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    *,
    natural_proxies: npt.ArrayLike | None = None,
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> Margins:
    """`fit_margins` for a sample; `about` holds the fields of `Margins` that say whose they are."""
    bound = fit_sample(sample, confidence=confidence, method=method, **options)
    if bound.unbounded and bound.notes:
        # The line to blame is where `fit_margins` or `Study.fit` was called.
        warnings.warn(bound.notes[0], NoBound, stacklevel=3)
    if natural_proxies is None:  # the first natural moment of each group stands for them
        groups, proxies = sample.groups[sample.natural], sample.proxies[sample.natural, 0]
        first = np.unique(groups, return_index=True)[1]
        natural_proxies = [] if sample.looks_at_n else proxies[first]
    summary = summarise(natural_proxies) if np.size(natural_proxies) else None
    return Margins(bound, natural_proxies=summary, **(about or {}))
