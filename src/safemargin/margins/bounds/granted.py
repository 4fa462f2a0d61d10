"""The promise about the margin itself: of the moments that are granted n, few may fail.

The other methods bound the loss, and a margin follows from the bound; far fewer margins then fail
than may. Here, for each tolerance that the user names, the proxy's range is cut into a part for
each n, the largest n where the proxy is lowest. A margin of n fails at a moment whose loss exceeds
the tolerance for some n' ≤ n. Of the natural moments in each part, a share of at most 1 − β may
fail, and so in each fifth of the proxy's range. The cuts are the highest for which that is so.

Choosing the highest cuts flatters: the share that may fail is lowered, for each n by
itself, until in cross-validation by group at most 1 − β of the margins of n fail on moments that
the cuts have not seen. The
promise is about the average over fresh natural moments that are granted a margin above 0; like
cross-fitted calibration, it rests on cross-validation and simulation, not on a proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.ranks import assign_folds, check_groups, proxy_grid
from safemargin.margins.bounds.sample import Booleans, Integers, Options, Sample
from safemargin.margins.bounds.table import Bound

FOLDS = 10
PARTS = 5
BUDGETS: Floats = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
"""Shares of 1 − β that cuts are tried with, the largest first."""


def fit_granted(sample: Sample, options: Options) -> Bound:
    """Cut the proxy's range so that at most 1 − β of the granted margins fail."""
    if not options.tolerances:
        raise InvalidInput(
            "the promise about the margin is made for tolerances that you name: --tolerance 0.5 "
            "(tolerances=[0.5] in Python)"
        )
    if sample.looks_at_n:
        raise InvalidInput(
            "the promise about the margin needs a proxy with one value per step, and this one "
            "looks at n; take another proxy, or --promise bound"
        )
    check_groups(sample)
    grid = proxy_grid(sample.proxies[:, 0], options.bins)
    bins = np.searchsorted((grid[:-1] + grid[1:]) / 2, sample.proxies[:, 0], side="right")
    folds = assign_folds(sample, FOLDS)
    natural = sample.natural
    risk = 1 - options.confidence
    upper = np.full((len(sample.n_values), options.bins), np.inf)
    found = []
    for tolerance in sorted(options.tolerances, reverse=True):
        broken = sample.running_maximum > tolerance  # [rows, n]
        counts = _Counts(bins[natural], broken[natural], folds[natural], options.bins)
        budgets = _largest_budgets(counts, risk, len(sample.n_values))
        cuts = counts.cuts(risk, budgets)
        for column, cut in enumerate(cuts):
            upper[column, :cut] = tolerance
        failed, granted = counts.failures(cuts)
        found.append(
            {
                "tolerance": float(tolerance),
                "share_of_risk_used": budgets.tolist(),
                "granted_moments": granted.tolist(),
                "failed_moments": failed.tolist(),
                "highest_proxy": [float(grid[cut - 1]) if cut else None for cut in cuts],
            }
        )
    few = int(natural.sum())
    return sample.bound(
        options,
        method="granted",
        grid=np.stack([grid] * len(sample.n_values)),
        upper=upper,
        details={
            "bounds": "granted margins: the tolerance where n is granted, no bound elsewhere",
            "guarantee": (
                "by cross-validation, not by proof: of fresh natural moments that are granted a "
                "margin above 0, at most 1 − confidence lose more than the tolerance for some "
                "n' ≤ the margin, on average over all of them, over those granted each n, and "
                "over each fifth of the proxy's range"
            ),
            "tolerances": sorted(float(each) for each in options.tolerances),
            "natural_moments": few,
            "promises": found,
            "notes": _notes(upper, few, risk),
        },
    )


def _notes(upper: Floats, natural: int, risk: float) -> list[str]:
    if np.isfinite(upper).any():
        return []
    return [
        f"nothing is granted at these tolerances: no part of the proxy's range with at least "
        f"{_fewest(risk)} of the {natural} natural moments stays within the risk of {risk:.3g}; "
        "collect more moments, name a larger tolerance, or learn a better proxy"
    ]


def _fewest(risk: float) -> int:
    """Return the fewest moments of which none fails that show a risk: (0 + 1) / (m + 1) ≤ risk."""
    return int(np.ceil(1 / risk - 1 - 1e-9))


@dataclass(frozen=True, eq=False)
class _Counts:
    """Natural moments in each bin of the proxy's range, and how many of them break each n."""

    bins: Integers  # [natural]
    broken: Booleans  # [natural, n]
    folds: Integers  # [natural]
    bin_count: int

    def _per_bin(self, left_out: int | None) -> tuple[Integers, Integers]:
        """Return moments [bins] and those of them that break each n [n, bins]."""
        kept = np.ones(len(self.bins), bool) if left_out is None else self.folds != left_out
        bins, broken = self.bins[kept], self.broken[kept]
        count = np.bincount(bins, minlength=self.bin_count)
        bad = [np.bincount(bins[column], minlength=self.bin_count) for column in broken.T]
        return count, np.stack(bad)

    def cuts(self, risk: float, budgets: Floats, left_out: int | None = None) -> Integers:
        """Return the bin before which each n is granted, [n]: they fall from small n to large.

        The moments granted n may fail in `budgets[n]` of the risk, a fifth of the range in all.
        """
        count, bad = self._per_bin(left_out)
        fifth = np.minimum(
            (np.cumsum(count) - count / 2) * PARTS // max(count.sum(), 1), PARTS - 1
        ).astype(np.int64)  # [bins]
        cuts = np.zeros(len(bad), np.int64)
        start = 0
        failed_before = np.zeros(PARTS)  # of the moments granted a larger n, by fifth
        granted_before = np.zeros(PARTS)
        for column in reversed(range(len(bad))):
            allowed = (risk, risk * budgets[column])
            end = self._end(
                count, bad[column], fifth, start, allowed, failed_before, granted_before
            )
            for part in range(PARTS):
                inside = fifth[start:end] == part
                failed_before[part] += bad[column][start:end][inside].sum()
                granted_before[part] += count[start:end][inside].sum()
            cuts[column] = start = end
        return cuts

    def _end(
        self,
        count: Integers,
        bad: Integers,
        fifth: Integers,
        start: int,
        allowed: tuple[float, float],
        failed_before: Floats,
        granted_before: Floats,
    ) -> int:
        """Return the last bin up to which granting this n keeps the risk, from `start` on."""
        risk, of_n = allowed  # in a fifth of the range, and of the moments granted this n
        moments, failed = np.cumsum(count[start:]), np.cumsum(bad[start:])
        good = (failed + 1) <= of_n * (moments + 1)
        for part in range(PARTS):
            inside = fifth[start:] == part
            in_part = granted_before[part] + np.cumsum(count[start:] * inside)
            bad_in_part = failed_before[part] + np.cumsum(bad[start:] * inside)
            # A fifth is entered only as far as enough moments there speak for it; half of what
            # each n needs, since the moments granted that n speak for it, too.
            good &= (in_part == 0) | (bad_in_part + 0.5 <= risk * (in_part + 1))
        ends = np.flatnonzero(good)
        return start + (int(ends[-1]) + 1 if len(ends) else 0)

    def failures(self, cuts: Integers, fold: int | None = None) -> tuple[Integers, Integers]:
        """Return how many moments fail, and are granted, each n: [n]."""
        rows = np.ones(len(self.bins), bool) if fold is None else self.folds == fold
        steps = (self.bins[rows, None] < cuts).sum(axis=1)  # how many of the n are granted
        at = np.maximum(steps - 1, 0)
        fails = self.broken[rows][np.arange(len(at)), at] & (steps > 0)
        size = len(cuts) + 1
        failed = np.bincount(steps[fails], minlength=size)[1:]
        return failed, np.bincount(steps, minlength=size)[1:]


def _largest_budgets(counts: _Counts, risk: float, n_count: int) -> Floats:
    """Return for each n the largest budget whose margins hold on moments the cuts have not seen."""
    steps = np.zeros(n_count, np.int64)  # indices into BUDGETS; the last one grants nothing
    while True:
        failed, granted = np.zeros(n_count), np.zeros(n_count)
        for fold in range(FOLDS):
            of_fold = counts.failures(counts.cuts(risk, BUDGETS[steps], left_out=fold), fold)
            failed, granted = failed + of_fold[0], granted + of_fold[1]
        broken = (failed > risk * granted) & (steps < len(BUDGETS) - 1)
        if not broken.any():
            return np.asarray(BUDGETS[steps])
        steps[broken] += 1
