"""Validations and comparisons as tables."""

from __future__ import annotations

from safemargin.cli.console import print_table
from safemargin.margins.bounds.sample import ESTIMANDS
from safemargin.validation.comparison import Comparison
from safemargin.validation.gaps import GapError
from safemargin.validation.heldout import CoverageRow, Share
from safemargin.validation.validating import Validation


def print_validation(validation: Validation) -> None:
    """Print what unseen moments show, from the promise of a margin to the paper's tables."""
    what = ESTIMANDS[validation.estimand]
    promised = validation.confidence
    print_table(
        f"Margins on unseen moments ({what}, method {validation.method!r}, confidence "
        f"{promised:g}): how often some n' ≤ margin broke the tolerance; at most "
        f"{1 - promised:.3g} was promised",
        ["tolerance", "moments", "broken", "share", "95 % interval", "mean margin"],
        [
            [
                f"{row.tolerance:g}",
                f"{row.failed.tested} {row.phase}",
                str(row.failed.count),
                _number(row.failed.share),
                _interval(row.failed),
                f"{row.mean_margin:.2f}",
            ]
            for row in validation.chain
        ],
    )
    for phase in dict.fromkeys(row.phase for row in validation.held_out):
        _print_coverage(validation, phase)
    print(
        "In brackets the lower end of the 95 % interval (Clopper–Pearson); of twenty intervals, "
        "one misses the truth by chance.\nTo notice that a bound covers one point less than "
        f"promised takes about {validation.tests_for_one_point:,} moments."
    )
    if validation.above_range or validation.no_bound:
        print(
            f"Margin 0 for lack of data: {validation.above_range:.1%} of natural moments lay above "
            f"the range of a fit without them, {validation.no_bound:.1%} had no bound."
        )
    if validation.same_law is None:
        print("Natural and spread moments: there is only one kind, so there is nothing to compare.")
    else:
        test = validation.same_law
        verdict = (
            "they differ, so the calibration is in doubt: collect natural moments only"
            if test.p_value < 0.05
            else "no sign that their losses differ given the proxy"
        )
        print(
            f"Natural and spread moments: {verdict} (permutation test, p = {test.p_value:.3f}, "
            f"{test.informative} moments)."
        )
    _print_table_one(validation)
    print_table(
        "How much data stands behind one proxy value, and the percentile error it allows "
        "(the paper's Table III)",
        ["kernel", "bandwidth", "spread moments", "sample size", "tight bound", "loose bound"],
        [
            [
                row.kernel if row.n is None else f"{row.kernel}, n = {row.n}",
                f"{row.bandwidth:.3g}",
                str(row.spread_moments),
                f"{row.sample_size:.2f}",
                _number(row.tight_bound),
                _number(row.loose_bound),
            ]
            for row in validation.sample_sizes
        ],
    )
    print_gaps(validation.gaps)
    for note in validation.notes:
        print(f"note: {note}")


def _print_coverage(validation: Validation, phase: str) -> None:
    rows = [row for row in validation.held_out if row.phase == phase]
    n_values = list(dict.fromkeys(row.n for row in rows if row.n is not None))
    parts = list(dict.fromkeys(row.part for row in rows))

    def cell(part: int | None, n: int | None) -> CoverageRow:
        return next(row for row in rows if row.part == part and row.n == n)

    print_table(
        f"Coverage on unseen {phase} moments: how often the largest loss over all n' ≤ n stayed "
        f"under the bound; {validation.confidence:g} was promised",
        ["proxy", "moments", *(f"n = {n}" for n in n_values), "all n"],
        [
            [
                "all" if part is None else f"{whole.low_proxy:.3g} – {whole.high_proxy:.3g}",
                str(max(cell(part, n).held.tested for n in n_values)),
                *(f"{_number(cell(part, n).held.share)} {_short(cell(part, n).held)}"
                  for n in n_values),
                _number(whole.held.share),
            ]
            for part in parts
            for whole in [cell(part, None)]
        ],
    )  # fmt: skip


def _print_table_one(validation: Validation) -> None:
    noise = validation.coverage[0].standard_error
    print_table(
        f"The paper's Table I (fitted on the first {validation.train_moments} moments without "
        f"lift, tested on the other {validation.test_moments})",
        ["n", "held", "of", "success rate", "percentile error", "binomial noise"],
        [
            [
                str(row.n),
                str(row.succeeded),
                str(row.tested),
                f"{row.success_rate:.3f}",
                f"{row.percentile_error:+.3f}",
                f"±{row.standard_error:.3f}",
            ]
            for row in validation.coverage
        ],
    )
    print("A percentile error above 0 means that the bound was broken more often than promised;")
    print(f"up to ±{2 * noise:.3f} (twice the binomial noise) means nothing.")


def print_comparison(comparison: Comparison) -> None:
    """Print all candidates, and the winner for each tolerance."""
    tolerances = [f"{tolerance:g}" for tolerance in comparison.tolerances]
    print_table(
        f"Methods and proxies on unseen natural moments ({ESTIMANDS[comparison.estimand]}, "
        f"confidence {comparison.confidence:g}, {comparison.natural_moments} natural of "
        f"{comparison.moments} moments)",
        [
            "method",
            "proxy",
            "coverage",
            "worst fifth",
            *(f"margin (broken) at {tolerance}" for tolerance in tolerances),
            "holds",
        ],
        [
            [
                row.method,
                row.proxy,
                _number(row.coverage.share),
                _number(row.worst_part.share),
                *(
                    f"{margin:.2f} ({_number(failed.share)})"
                    for margin, failed in zip(row.mean_margins, row.chain_failures, strict=True)
                ),
                "no bound" if row.no_bound == 1 else "yes" if row.holds else "no",
            ]
            for row in comparison.candidates
        ],
    )
    for tolerance, winner in zip(tolerances, comparison.winners, strict=True):
        if winner is None:
            print(f"tolerance {tolerance}: none holds; collect more moments")
        else:
            print(f"tolerance {tolerance}: {winner.method} with {winner.proxy}")
    print(
        "The winner grants the largest mean margin among those not shown to break their promise;\n"
        "in brackets, how often some n' ≤ margin broke the tolerance "
        f"({1 - comparison.confidence:.3g} is allowed)."
    )
    print_gaps(comparison.gaps)
    for text in comparison.left_out:
        print(f"left out: {text}")
    for note in dict.fromkeys(note for row in comparison.candidates for note in row.notes):
        print(f"note: {note}")


def print_gaps(gaps: GapError | None) -> None:
    """Print what the powers of two would have missed, if that is known."""
    if gaps is None:
        return
    print_table(
        f"Gap error: what n = {', '.join(map(str, gaps.thin))} alone would have given instead of "
        f"all n up to {gaps.dense[-1]} (natural moments, fitted on themselves)",
        ["tolerance", "mean margin, all n", "powers of two", "broken, all n", "powers of two"],
        [
            [
                f"{row.tolerance:g}",
                f"{row.dense_margin:.2f}",
                f"{row.thin_margin:.2f}",
                f"{row.dense_failures:.3f}",
                f"{row.thin_failures:.3f}",
            ]
            for row in gaps.rows
        ],
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(share: Share) -> str:
    return "–" if share.share is None else f"{share.low:.3f} – {share.high:.3f}"


def _short(share: Share) -> str:
    """Write the lower end of the interval, the one that matters, in brackets."""
    return "" if share.share is None else f"[{share.low:.2f}]"
