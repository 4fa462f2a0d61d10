"""The numbers behind a study's pictures (paper § IV): densities, margins and proxies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from safemargin.core.records import PHASES, Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.paper import keep_lowest, paper_densities
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import check_confidence
from safemargin.margins.density import Density
from safemargin.margins.lookup import Margins

MOST_PANELS = 9


@dataclass(frozen=True, eq=False)
class KdePanel:
    """The densities for one n."""

    n: int
    density: Density
    mean: Floats  # [bins]
    median: Floats  # [bins]
    percentile: Floats  # [bins] b*_β before it is made monotone
    proxies: Floats  # [moments used]
    criticalities: Floats  # [moments used]


@dataclass(frozen=True, eq=False)
class KdeInfo:
    """The densities of a study."""

    panels: tuple[KdePanel, ...]
    n_values: tuple[int, ...]
    """All n of the study; `panels` may hold a selection."""
    proxy: str
    confidence: float
    dropped: int


@dataclass(frozen=True, eq=False)
class HeatmapInfo:
    """Margins over proxy and tolerance."""

    proxies: Floats  # [bins]
    tolerances: Floats  # [tolerances]
    margins: npt.NDArray[np.int64]  # [tolerances, bins]
    fitted: Margins
    """The margins that were looked up."""


@dataclass(frozen=True, eq=False)
class HistogramInfo:
    """The proxies of the measured moments, by phase."""

    edges: Floats  # [bins + 1]
    natural: npt.NDArray[np.int64]  # [bins]
    spread: npt.NDArray[np.int64]  # [bins]
    proxy: str
    dropped: int
    drop_highest: float
    cut_off: float | None
    """The lowest proxy that the fit leaves out; None if it leaves out none."""


def kde_info(
    tuples: Tuples,
    *,
    confidence: float = 0.95,
    minimum_bandwidth: float = 0.0,
    drop_highest: float = 0.05,
    bins: int = 200,
    most_panels: int = MOST_PANELS,
) -> KdeInfo:
    """Compute the density and its curves for each n, or for evenly spaced n if there are many."""
    check_confidence(confidence)
    chosen = spaced(len(tuples.n_values), most_panels)
    sample = Sample.from_tuples(tuples).take_columns(chosen)
    densities = paper_densities(
        sample, drop_highest=drop_highest, bins=bins, minimum_bandwidth=minimum_bandwidth
    )
    panels = tuple(
        KdePanel(
            n=n,
            density=density,
            mean=density.mean,
            median=density.median,
            percentile=density.percentile(confidence),
            proxies=proxies[keep := keep_lowest(proxies, drop_highest)],
            criticalities=losses[keep],
        )
        for n, density, proxies, losses in zip(
            sample.n_values, densities, sample.proxies.T, sample.losses.T, strict=True
        )
    )
    dropped = len(sample.proxies) - len(panels[0].proxies)
    return KdeInfo(panels, tuples.n_values, tuples.proxy, confidence, dropped)


def heatmap_info(margins: Margins, *, tolerances: npt.ArrayLike | None = None) -> HeatmapInfo:
    """Compute the margin at each proxy bin and tolerance.

    By default, tolerances reach up to where all n are affordable.
    """
    if tolerances is None:
        upper = margins.bound.upper[np.isfinite(margins.bound.upper)]  # the rest has margin 0
        highest = float(upper.max()) if len(upper) else 0.0
        tolerances = np.linspace(0, 1.05 * highest if highest > 0 else 1.0, 211)
    rows = np.asarray(tolerances, dtype=np.float64)
    if rows.ndim != 1 or len(rows) < 2 or not (np.diff(rows) > 0).all():
        raise InvalidInput("a heatmap needs two or more tolerances in increasing order")
    return HeatmapInfo(margins.bound.grid[0], rows, margins.heatmap(rows), margins)


def histogram_info(
    tuples: Tuples, *, drop_highest: float = 0.05, bins: int = 50, n: int | None = None
) -> HistogramInfo:
    """Count proxies by phase in equal bins; `n` picks the column of a proxy that looks at n.

    `drop_highest` is the share that the fit leaves out: 0.05 with the paper's method, else 0.
    """
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    if not len(tuples):
        raise InvalidInput("there are no moments to draw: collect first")
    proxies, name = tuples.proxies, tuples.proxy
    if proxies.ndim == 2:
        n = tuples.n_values[0] if n is None else n
        if n not in tuples.n_values:
            raise InvalidInput(f"n = {n} is not in this study: {list(tuples.n_values)}")
        proxies, name = proxies[:, tuples.n_values.index(n)], f"{name}, n = {n}"
    keep = keep_lowest(proxies, drop_highest)
    left_out = np.delete(proxies, keep)
    edges = np.histogram_bin_edges(proxies, bins)
    natural, spread = (np.histogram(proxies[tuples.phases == phase], edges)[0] for phase in PHASES)
    return HistogramInfo(
        edges=edges,
        natural=natural,
        spread=spread,
        proxy=name,
        dropped=len(left_out),
        drop_highest=drop_highest,
        cut_off=float(left_out.min()) if len(left_out) else None,
    )


def spaced(count: int, most: int) -> list[int]:
    """Return at most `most` indices below `count`, evenly spaced, including first and last."""
    if most < 1:
        raise InvalidInput(f"most_panels must be at least 1, got {most}")
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))})


def percent(share: float) -> str:
    """Return a share as text: 0.95 → 95 %, 0.999 → 99.9 %."""
    return f"{100 * share:.10g} %"
