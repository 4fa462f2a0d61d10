"""Margins from measured moments: a bound of the chosen method, and whose it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.margins.bounds.table import Estimand
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD, fit_bound
from safemargin.margins.natural_proxies import NaturalProxies, summarise


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
    """Margins from measured moments: the proxy at each, and its true criticality for each n.

    `natural` marks the moments that were drawn as the agent meets them (not spread over proxies
    on purpose): the confidence is calibrated on these. `groups` labels the episode of each moment;
    what belongs together is never used to fit and to calibrate at once. `estimand` "single-run"
    bounds what one run loses instead of the mean, and takes the losses of single runs.
    `natural_proxies` are the proxies of one random decision of each episode: a monitor notices by
    them when live ones look otherwise. Further options are those of
    `safemargin.margins.bounds.sample.Options`.

    How far `confidence` can be relied on depends on the method: see
    `safemargin.margins.methods` and `margins.bound.details["guarantee"]`. Where the data allow no
    bound at this confidence, the
    margin is 0 and a `NoBound` warning says how many moments are needed.
    """
    bound = fit_bound(
        proxies,
        criticalities,
        n_values,
        confidence=confidence,
        method=method,
        natural=natural,
        groups=groups,
        estimand=estimand,
        **options,
    )
    if bound.unbounded and bound.notes:
        warnings.warn(bound.notes[0], NoBound, stacklevel=2)
    return Margins(
        bound=bound,
        proxy=proxy,
        environment=dict(environment or {}),
        policy=dict(policy or {}),
        settings=dict(settings or {}),
        counts={"moments": len(np.asarray(criticalities))} if counts is None else dict(counts),
        natural_proxies=_natural_proxies(natural_proxies, proxies, natural, groups),
        created_by=created_by,
    )


def _natural_proxies(
    given: npt.ArrayLike | None,
    proxies: npt.ArrayLike,
    natural: npt.ArrayLike | None,
    groups: npt.ArrayLike | None,
) -> NaturalProxies | None:
    """What was given, or else the first natural moment of each group; None if it looks at n."""
    if given is not None:
        return summarise(given) if np.size(given) else None
    values = np.asarray(proxies, dtype=np.float64)
    if values.ndim != 1:
        return None
    kept = np.ones(len(values), dtype=bool) if natural is None else np.asarray(natural, dtype=bool)
    values = values[kept]
    if groups is not None:
        values = values[np.unique(np.asarray(groups)[kept], return_index=True)[1]]
    return summarise(values) if len(values) else None
