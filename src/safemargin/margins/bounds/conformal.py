"""Conformal calibration of a percentile curve: shared by `calibrated`, `isotonic` and `boosted`.

A *curve* guesses the β percentile of C_n = max over n' ≤ n of the loss, given the proxy. Natural
moments that the guess has not seen then show how far it is off: the score of a moment is
(C − guess) / scale, and the guess is raised by q, the ⌈(m + 1)β⌉-th smallest of m scores:
b = guess + q · scale. This is done separately in a few bins of the proxy's range (if cross-fitted,
halfway between the bin's q and that of all bins together).

Split calibration is exact: if natural moments are drawn from one distribution and independently of
one another (one per episode), a fresh natural moment stays at or below b_n with a probability of at
least β, in every bin and for each n, whatever the distribution and the curve (Vovk, Gammerman and
Shafer 2005; Lei and others 2018). Cross-fitted calibration uses every moment for both purposes, ten
times in turn; it is sharper, and in simulations it covers β (docs/methods.md), but there is no such
proof. Neither promises anything about a single proxy value, only about the average over a bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.ranks import assign_folds, check_groups, proxy_grid, ranks_in
from safemargin.margins.bounds.sample import Booleans, Integers, Options, Sample
from safemargin.margins.bounds.table import Bound, check_confidence

POINTS: Floats = np.linspace(0, 1, 101)
"""The ranks at which curves are evaluated; in between, they are interpolated linearly."""

MOST_BINS = 5

ROOM = 5
"""A bin holds at least this many times the moments that its calibration needs: the highest scores
of fewer moments are mostly chance."""

Curve = Callable[[Floats, Floats, Integers, int, float], tuple[Floats, Floats]]
"""(ranks [rows], losses [rows], folds [rows], fold count, β) → percentile, scale.

Both are [fold count + 1, points]: one curve without the rows of each fold, and a last one of all
rows.
"""

GUARANTEES = {
    "split": (
        "exact in finite samples: a fresh natural moment keeps C_n ≤ b_n with a probability of at "
        "least the confidence, in every calibration bin and for each n, if natural moments are "
        "independent"
    ),
    "cross-fitted": (
        "in simulation, not by proof: a fresh natural moment keeps C_n ≤ b_n with about the "
        "confidence, in every calibration bin and for each n"
    ),
}


def moments_needed(confidence: float, bins: int = MOST_BINS) -> int:
    """Return how many natural moments a calibration at this confidence needs.

    In each bin the ⌈(m + 1)β⌉-th smallest of m scores must exist: m ≥ β / (1 − β), which is 19 at
    0.95, 99 at 0.99 and 999 at 0.999. With fewer there is no bound, and the margin is 0.
    """
    check_confidence(confidence)
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    return bins * math.ceil(confidence / (1 - confidence) * (1 - 1e-9))


@dataclass(frozen=True, eq=False)
class _Roles:
    """What each row of the sample is used for."""

    folds: Integers  # [rows]
    fold_count: int
    """0 with split calibration: one curve only."""
    fitting: Booleans  # [rows] the curve is fitted to these
    scored: Booleans  # [rows] the curve is calibrated on these


@dataclass(frozen=True, eq=False)
class _Calibrated:
    """The calibrated curve of one n."""

    percentile: Floats  # [points]
    scale: Floats  # [points]
    edges: Floats  # [bins − 1] inner edges of the bins, as ranks
    raises: Floats  # [bins] q; infinite where there are too few moments
    counts: Integers  # [bins] natural moments behind each q

    def at(self, ranks: Floats) -> Floats:
        """Return b at each rank."""
        raises = self.raises[np.searchsorted(self.edges, ranks, side="right")]
        guess, scale = (np.interp(ranks, POINTS, each) for each in (self.percentile, self.scale))
        return np.asarray(guess + raises * scale)


def fit_calibrated_curve(
    sample: Sample, options: Options, *, method: str, curve: Curve, fold_count: int = 10
) -> Bound:
    """Turn a percentile curve into a bound by calibrating it on natural moments."""
    check_groups(sample)
    targets = sample.running_maximum  # [rows, n]
    roles = _roles(sample, fold_count, split=options.calibration == "split")
    have = len(np.unique(sample.moments[roles.scored]))
    needed = moments_needed(options.confidence, 1)
    bins = _bin_count(have, options)
    grids: list[Floats] = []
    uppers, parts = [], []
    for column in range(len(sample.n_values)):
        if sample.looks_at_n or not grids:
            proxies = sample.proxies[:, column]
            grids.append(proxy_grid(proxies, options.bins))
            reference = np.sort(proxies[roles.fitting])
            ranks = ranks_in(reference, proxies)  # [rows]
            grid_ranks = ranks_in(reference, grids[-1])  # [bins]
        part = _calibrate(sample, options, roles, curve, ranks, targets[:, column], bins)
        upper = part.at(grid_ranks)
        if options.calibration != "split":  # which is left as it was proven
            # A guess plus a raise may lie far above every loss there was. With so few moments that
            # a raise is their highest score, the bound is the largest loss: less would not cover β.
            largest = targets[:, column].max()
            floor = largest if have < 2 * needed else -np.inf
            upper = np.where(np.isfinite(upper), np.clip(upper, floor, largest), upper)
        uppers.append(np.maximum.accumulate(upper) if options.lift else upper)
        parts.append(part)
    return sample.bound(
        options,
        method=method,
        grid=np.stack(grids if sample.looks_at_n else grids * len(sample.n_values)),
        upper=np.stack(uppers),
        details={
            "bounds": "the largest loss over all n' ≤ n",
            "guarantee": GUARANTEES[options.calibration],
            "calibration": options.calibration,
            "moments_given": sample.moment_count,
            "natural_moments": len(np.unique(sample.moments[sample.natural])),
            "calibration_bins": len(parts[0].counts),
            "calibration_moments": parts[0].counts.tolist(),
            "moments_needed_in_a_bin": needed,
            "raised_by": [
                [q if math.isfinite(q) else None for q in part.raises.tolist()] for part in parts
            ],
            "lift": options.lift,
            "notes": _notes(np.stack(uppers), parts, have, options),
        },
    )


def _roles(sample: Sample, fold_count: int, *, split: bool) -> _Roles:
    """Split: one half fits, the other calibrates. Cross-fitted: every row does both in turn."""
    if not split:
        everything = np.ones(len(sample), dtype=bool)
        return _Roles(assign_folds(sample, fold_count), fold_count, everything, sample.natural)
    halves = assign_folds(sample, 2)
    return _Roles(halves, 0, halves == 0, sample.natural & sample.first_runs & (halves == 1))


def _calibrate(
    sample: Sample,
    options: Options,
    roles: _Roles,
    curve: Curve,
    ranks: Floats,  # [rows] of the proxies
    losses: Floats,  # [rows]
    bins: int,
) -> _Calibrated:
    confidence, fitting, scored = options.confidence, roles.fitting, roles.scored
    percentile, scale = curve(
        ranks[fitting], losses[fitting], roles.folds[fitting], roles.fold_count, confidence
    )
    of_natural = ranks[sample.natural & fitting]
    keep = options.calibration_bins is not None
    edges = _edges(of_natural if len(of_natural) else ranks[fitting], bins, keep=keep)
    bins = len(edges) + 1
    # Row i of a curve was fitted without fold i; split calibration has one curve, row 0.
    row = roles.folds[scored] if roles.fold_count else np.zeros(int(scored.sum()), dtype=np.int64)
    guess, width = (_at(values, row, ranks[scored]) for values in (percentile, scale))
    scores = (losses[scored] - guess) / width  # [scored rows]
    bin_of = np.searchsorted(edges, ranks[scored], side="right")
    raises, counts = np.full(bins, np.inf), np.zeros(bins, dtype=np.int64)
    for part in range(bins):
        inside = bin_of == part
        counts[part] = len(np.unique(sample.moments[scored][inside]))
        raises[part] = conformal_quantile(scores[inside], int(counts[part]), confidence)
    if roles.fold_count:
        # Halfway to the raise of all bins together: this halves the noise of each bin, which the
        # lift would carry upwards from the highest. Split calibration is left as it was proven.
        raises = (raises + conformal_quantile(scores, int(counts.sum()), confidence)) / 2
    return _Calibrated(percentile[-1], scale[-1], edges, raises, counts)


def _edges(ranks: Floats, bins: int, *, keep: bool) -> Floats:
    """Return the inner edges of bins that hold equally many ranks.

    Equal proxies cannot be separated. Unless all bins are to be kept, one that is left with less
    than half of its share is merged into its neighbour.
    """
    edges = np.quantile(ranks, np.arange(1, bins) / bins)
    if keep:
        return edges
    kept, fewest, start = [], len(ranks) / (2 * bins), 0
    for edge in edges:
        below = int((ranks < edge).sum())
        if below - start >= fewest and len(ranks) - below >= fewest:
            kept.append(edge)
            start = below
    return np.array(kept)


def conformal_quantile(scores: Floats, moments: int, confidence: float) -> float:
    """Return the ⌈(m + 1)β⌉-th smallest of m scores; infinity if m is too small for that.

    With several runs per moment, it is the same share of all runs; m still counts moments.
    """
    rank = math.ceil((moments + 1) * confidence - 1e-9)
    if moments == 0 or rank > moments:
        return math.inf
    index = math.ceil(rank * len(scores) / moments - 1e-9) - 1
    return float(np.partition(scores, index)[index])


def _at(values: Floats, fold: Integers, ranks: Floats) -> Floats:
    """Return curves [folds, points] at each row's fold and rank, [rows]."""
    position = np.clip(ranks, 0, 1) * (len(POINTS) - 1)
    left = np.minimum(position.astype(np.int64), len(POINTS) - 2)
    share = position - left
    return np.asarray((1 - share) * values[fold, left] + share * values[fold, left + 1])


def _bin_count(moments: int, options: Options) -> int:
    """Return the number of bins asked for, or else up to five with room in each.

    A bin with no more moments than it needs is raised to its largest score, and the lift carries
    the noise of one bin into all above it.
    """
    if options.calibration_bins is not None:
        return options.calibration_bins
    return max(1, min(MOST_BINS, moments // (ROOM * moments_needed(options.confidence, 1))))


def _notes(upper: Floats, parts: list[_Calibrated], have: int, options: Options) -> list[str]:
    needed, bins = moments_needed(options.confidence, 1), len(parts[0].counts)
    half = ", half of all with split calibration" * (options.calibration == "split")
    asked = f"a confidence of {options.confidence:g} needs {needed} natural moments"
    bounded = np.isfinite(upper)
    if not bounded.any():
        each = f" in each of {bins} parts of the proxy's range" * (bins > 1)
        return [
            f"no bound, so every margin is 0: {asked} to calibrate on{each}, and there are "
            f"{have}{half}; collect {needed * bins} or more, or lower the confidence"
        ]
    if not bounded.all():
        fewest = min(int(part.counts.min()) for part in parts)
        return [
            f"no bound, so margin 0, in part of the proxy's range: {asked} to calibrate on in "
            f"each of {bins} parts, and one has {fewest}{half}; collect more natural moments, or "
            "ask for fewer calibration_bins"
        ]
    if options.calibration != "split" and have < 2 * needed:
        return [
            f"one bound for all proxies, the largest loss: {asked}, and with fewer than twice as "
            f"many no lower bound would hold; there are {have}"
        ]
    if bins == MOST_BINS or options.calibration_bins is not None:
        return []
    enough = ROOM * moments_needed(options.confidence, MOST_BINS)
    of_five = f"in {bins} part{'s' * (bins > 1)} of the proxy's range, not in {MOST_BINS}"
    if have >= enough:
        return [f"calibrated {of_five}: equal proxies cannot be separated"]
    return [
        f"calibrated {of_five}: there are {have} natural moments to calibrate on{half}; {enough} "
        f"allow {MOST_BINS}"
    ]
