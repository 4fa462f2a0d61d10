"""Conformal calibration of a fitted percentile curve: what `calibrated` and its kin share.

A *curve* guesses the β percentile of C_n = max over n' ≤ n of the loss, given the proxy. How far
the guess is off is then read from natural moments that the guess has not seen: the score of a
moment is (C − guess) / scale, and the ⌈(m + 1)β⌉-th smallest of m scores, q, is what the guess
must be raised by: b = guess + q · scale. This is done apart in a few bins of the proxy's range
(cross-fitted: halfway between the bin's q and that of all bins together).

Split calibration holds exactly: if natural moments are drawn alike and independently of one
another (one an episode), a fresh natural moment stays at or below b_n with a probability of at
least β, in every bin, for each n, whatever the law and the curve (Vovk, Gammerman and Shafer 2005;
Lei and others 2018). Cross-fitted calibration uses every moment for both purposes, ten times in
turn; it is sharper, in simulations it covers β (docs/methods.md), but it carries no such proof.
Neither says anything about one proxy value, only about the average over a bin.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Booleans, Integers, Options, Sample
from safemargin.margins.bounds.table import Bound, check_confidence

POINTS: Floats = np.linspace(0, 1, 101)
"""The ranks at which curves are evaluated; between them they are straight."""

MOST_BINS = 5

ROOM = 5
"""A bin holds so many times what its calibration needs at least: the highest scores of fewer
moments are mostly chance."""

Curve = Callable[[Floats, Floats, Integers, int, float], tuple[Floats, Floats]]
"""(ranks [rows], losses [rows], folds [rows], fold count, β) → percentile, scale.

Both are [fold count + 1, points]: one curve without the rows of each fold, and one of all rows.
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
    """How many natural moments a calibration at this confidence takes, known before collecting.

    In each bin the ⌈(m + 1)β⌉-th smallest of m scores must exist: m ≥ β / (1 − β), which is 19 at
    0.95, 99 at 0.99 and 999 at 0.999. With fewer there is no bound, and the margin is 0.
    """
    check_confidence(confidence)
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    return bins * math.ceil(confidence / (1 - confidence) * (1 - 1e-9))


@dataclass(frozen=True, eq=False)
class _Calibrated:
    """One n, calibrated."""

    percentile: Floats  # [points]
    scale: Floats  # [points]
    edges: Floats  # [bins − 1] inner edges of the bins, as ranks
    raises: Floats  # [bins] q; infinite where there are too few moments
    counts: Integers  # [bins] natural moments behind each q


def fit_calibrated_curve(
    sample: Sample, options: Options, *, method: str, curve: Curve, fold_count: int
) -> Bound:
    """The bound that a curve becomes by calibration."""
    check_groups(sample)
    targets = sample.running_maximum  # [rows, n]
    split = options.calibration == "split"
    folds = assign_folds(sample, 2 if split else fold_count)  # [rows]
    fitting = folds == 0 if split else np.ones(len(sample), dtype=bool)  # [rows]
    scored = sample.natural & (sample.first_runs & ~fitting if split else True)  # [rows]
    have = len(np.unique(sample.moments[scored]))
    needed = moments_needed(options.confidence, 1)
    bins = _bin_count(have, options)
    grids: list[Floats] = []
    uppers, parts = [], []
    for column in range(len(sample.n_values)):
        if sample.looks_at_n or not grids:
            proxies = sample.proxies[:, column]
            grids.append(proxy_grid(proxies, options.bins))
            reference = np.sort(proxies[fitting])
            ranks = ranks_in(reference, proxies)  # [rows]
            grid_ranks = ranks_in(reference, grids[-1])  # [bins]
        part = _calibrate(
            ranks, targets[:, column], folds, sample, scored, fitting, bins, curve,
            0 if split else fold_count, options,
        )  # fmt: skip
        place = np.searchsorted(part.edges, grid_ranks, side="right")
        upper = np.interp(grid_ranks, POINTS, part.percentile) + part.raises[place] * np.interp(
            grid_ranks, POINTS, part.scale
        )
        if not split:
            # A guess plus a raise may lie far above every loss there was; that of split
            # calibration is left as the proof has it. Of so few moments that a raise is their
            # highest score, the largest loss itself is the bound: less would not cover β.
            largest = targets[:, column].max()
            floor = largest if have < 2 * needed else -np.inf
            upper = np.where(np.isfinite(upper), np.clip(upper, floor, largest), upper)
        uppers.append(np.maximum.accumulate(upper) if options.lift else upper)
        parts.append(part)
    return Bound(
        n_values=sample.n_values,
        grid=np.stack(grids if sample.looks_at_n else grids * len(sample.n_values)),
        upper=np.stack(uppers),
        confidence=options.confidence,
        method=method,
        details={
            "bounds": "the largest loss over all n' ≤ n",
            "guarantee": GUARANTEES[options.calibration],
            "calibration": options.calibration,
            "moments_given": sample.moment_count,
            "natural_moments": len(np.unique(sample.moments[sample.natural])),
            "calibration_bins": len(parts[0].counts),
            "calibration_moments": parts[0].counts.tolist(),
            "moments_needed_in_a_bin": needed,
            "raised_by": [[_or_none(q) for q in part.raises] for part in parts],
            "lift": options.lift,
            "notes": _notes(np.stack(uppers), parts, have, options),
        },
        looks_at_n=sample.looks_at_n,
        estimand=sample.estimand,
    )


def _calibrate(
    ranks: Floats,
    losses: Floats,
    folds: Integers,
    sample: Sample,
    scored: Booleans,
    fitting: Booleans,
    bins: int,
    curve: Curve,
    fold_count: int,
    options: Options,
) -> _Calibrated:
    confidence, keep = options.confidence, options.calibration_bins is not None
    percentile, scale = curve(
        ranks[fitting], losses[fitting], folds[fitting], fold_count, confidence
    )
    of_natural = ranks[sample.natural & fitting]
    edges = _edges(of_natural if len(of_natural) else ranks[fitting], bins, keep=keep)
    bins = len(edges) + 1
    fold = folds[scored] if fold_count else np.zeros(int(scored.sum()), dtype=np.int64)
    guess, width = (_at(values, fold, ranks[scored]) for values in (percentile, scale))
    scores = (losses[scored] - guess) / width  # [scored rows]
    place = np.searchsorted(edges, ranks[scored], side="right")
    raises, counts = np.full(bins, np.inf), np.zeros(bins, dtype=np.int64)
    for part in range(bins):
        inside = place == part
        counts[part] = len(np.unique(sample.moments[scored][inside]))
        raises[part] = conformal_quantile(scores[inside], int(counts[part]), confidence)
    if fold_count:
        # Halfway to the raise of all bins together: half of the chance in each, and the lift
        # would carry the highest of them upwards. Split calibration is left as the proof has it.
        raises = (raises + conformal_quantile(scores, int(counts.sum()), confidence)) / 2
    return _Calibrated(percentile[-1], scale[-1], edges, raises, counts)


def _edges(ranks: Floats, bins: int, *, keep: bool) -> Floats:
    """The inner edges of bins that hold equally many.

    Equal proxies cannot be parted. Unless all bins are to be kept, one that is left with less than
    half of its share becomes a piece of its neighbour.
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
    """The ⌈(m + 1)β⌉-th smallest of m scores, infinite where m is too small for that.

    With several runs a moment, the same share of all runs; m still counts moments.
    """
    place = math.ceil((moments + 1) * confidence - 1e-9)
    if moments == 0 or place > moments:
        return math.inf
    position = math.ceil(place * len(scores) / moments - 1e-9)
    return float(np.partition(scores, position - 1)[position - 1])


def check_groups(sample: Sample, fewest: int = 2) -> None:
    """Refuse moments that are too few pieces of evidence."""
    if (count := len(np.unique(sample.groups))) < fewest:
        whole = "one group (episode)" if count == 1 else f"{count} groups (episodes)"
        raise InvalidInput(
            f"all moments belong to {whole}, and it takes {fewest} to judge each by a fit without "
            "it; collect more varied episodes"
        )


def assign_folds(sample: Sample, fold_count: int) -> Integers:
    """The fold of each row, [rows]: groups stay whole, and each fold covers the proxy's range.

    Groups are dealt out in the order of their proxies, so the folds depend neither on the order of
    the moments nor on the proxy's scale. Equal proxies are ordered by a checksum of their losses:
    as good as chance, and the same every time.
    """
    marks = np.array([zlib.crc32(row.tobytes()) for row in np.ascontiguousarray(sample.losses)])
    order = np.lexsort((marks, *sample.proxies.T[::-1]))  # [rows]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    first = np.full(sample.groups.max() + 1, len(order))  # [groups]
    np.minimum.at(first, sample.groups, rank)
    turn = np.empty(len(first), dtype=np.int64)
    turn[np.argsort(first)] = np.arange(len(first))
    # Backwards and forwards in turn: else fold 0 would always hold the lowest of each ten.
    lap, seat = np.divmod(turn, fold_count)
    return np.where(lap % 2 == 0, seat, fold_count - 1 - seat)[sample.groups]


def ranks_in(reference: Floats, values: Floats) -> Floats:
    """The share of the sorted reference below each value; ties count half."""
    low = np.searchsorted(reference, values, side="left")
    high = np.searchsorted(reference, values, side="right")
    return (low + high) / (2 * len(reference))


def proxy_grid(proxies: Floats, bins: int) -> Floats:
    """So many increasing proxy values from the lowest to the highest, at even ranks, [bins]."""
    values = np.unique(np.quantile(proxies, np.linspace(0, 1, bins), method="nearest"))
    gaps = len(values) - 1
    if gaps == 0 or not np.all(np.diff(values) > 0):
        raise InvalidInput(
            f"all {len(proxies)} proxies are equal ({proxies[0]:g}): margins need a proxy that "
            "varies; choose another proxy or collect more varied episodes"
        )
    missing = bins - len(values)  # equal proxies: fill the gaps between distinct ones
    evenly = [missing // gaps + (gap < missing % gaps) for gap in range(gaps)]
    widest = [missing * (gap == np.argmax(np.diff(values))) for gap in range(gaps)]
    for extra in (evenly, widest):  # two proxies can be too near for a third between them
        pieces = [
            np.linspace(low, high, extra[gap] + 1, endpoint=False)
            for gap, (low, high) in enumerate(itertools.pairwise(values))
        ]
        grid = np.concatenate([*pieces, values[-1:]])
        if np.all(np.diff(grid) > 0):
            return grid
    raise InvalidInput(
        f"the {len(values)} distinct proxies from {values[0]!r} to {values[-1]!r} are too near one "
        "another to tell apart; choose another proxy"
    )


def _at(values: Floats, fold: Integers, ranks: Floats) -> Floats:
    """Curves [folds, points] at each row's fold and rank, [rows]."""
    place = np.clip(ranks, 0, 1) * (len(POINTS) - 1)
    left = np.minimum(place.astype(np.int64), len(POINTS) - 2)
    share = place - left
    return np.asarray((1 - share) * values[fold, left] + share * values[fold, left + 1])


def _bin_count(moments: int, options: Options) -> int:
    """As many bins as asked for; else up to five with room in each.

    With no more than it needs, a bin is raised to its largest score, and the lift carries the
    chance of one bin into all above it.
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
            f"no bound, so margin 0, in a part of the proxy's range: {asked} to calibrate on in "
            f"each of {bins} parts, and one has {fewest}{half}; collect more natural moments, or "
            "ask for fewer calibration_bins"
        ]
    if options.calibration != "split" and have < 2 * needed:
        return [
            f"one bound for all proxies, the largest loss: {asked}, and with less than twice as "
            f"many nothing below it would do; there are {have}"
        ]
    if bins == MOST_BINS or options.calibration_bins is not None:
        return []
    enough = ROOM * moments_needed(options.confidence, MOST_BINS)
    of_five = f"in {bins} part{'s' * (bins > 1)} of the proxy's range, not in {MOST_BINS}"
    if have >= enough:
        return [f"calibrated {of_five}: equal proxies cannot be parted"]
    return [
        f"calibrated {of_five}: there are {have} natural moments to calibrate on{half}; {enough} "
        f"allow for {MOST_BINS}"
    ]


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
