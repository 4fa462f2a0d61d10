"""Validations and comparisons as tables."""

from __future__ import annotations

from functools import partial

from safemargin.cli.console import as_cell, print_records, print_table
from safemargin.margins.bounds.sample import ESTIMANDS
from safemargin.margins.methods import METHODS
from safemargin.validation.comparison import Candidate, Comparison
from safemargin.validation.gaps import GapError
from safemargin.validation.heldout import CoverageRow, Share
from safemargin.validation.validating import Validation


def print_validation(validation: Validation) -> None:
    """Print what unseen moments show, from the promise of a margin to the paper's tables."""
    what = ESTIMANDS[validation.estimand]
    promised = validation.confidence
    print_records(
        f"Margins on unseen moments ({what}, method {validation.method!r}, confidence "
        f"{promised:g}): how often some n' ≤ margin broke the tolerance; at most "
        f"{1 - promised:.3g} was promised",
        validation.chain,
        ("tolerance", lambda row: f"{row.tolerance:g}"),
        ("moments", lambda row: f"{row.failed.tested} {row.phase}"),
        ("broken", lambda row: row.failed.count),
        ("share", lambda row: row.failed.share),
        ("95 % interval", lambda row: _interval(row.failed)),
        ("mean margin", lambda row: f"{row.mean_margin:.2f}"),
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
    print_records(
        f"The paper's Table I (fitted on the first {validation.train_moments} moments without "
        f"lift, tested on the other {validation.test_moments})",
        validation.coverage,
        ("n", lambda row: row.n),
        ("held", lambda row: row.succeeded),
        ("of", lambda row: row.tested),
        ("success rate", lambda row: row.success_rate),
        ("percentile error", lambda row: f"{row.percentile_error:+.3f}"),
        ("binomial noise", lambda row: f"±{row.standard_error:.3f}"),
    )
    print(
        "A percentile error above 0 means that the bound was broken more often than promised;\n"
        f"up to ±{2 * validation.coverage[0].standard_error:.3f} (twice the binomial noise) means "
        "nothing."
    )
    print_records(
        "How much data stands behind one proxy value, and the percentile error it allows "
        "(the paper's Table III)",
        validation.sample_sizes,
        ("kernel", lambda row: row.kernel if row.n is None else f"{row.kernel}, n = {row.n}"),
        ("bandwidth", lambda row: f"{row.bandwidth:.3g}"),
        ("spread moments", lambda row: row.spread_moments),
        ("sample size", lambda row: f"{row.sample_size:.2f}"),
        ("tight bound", lambda row: row.tight_bound),
        ("loose bound", lambda row: row.loose_bound),
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
        ["proxy", "moments", *(f"n = {n}" for n in n_values), "mean over n"],
        [
            [
                "all" if part is None else f"{whole.low_proxy:.3g} – {whole.high_proxy:.3g}",
                max(cell(part, n).held.tested for n in n_values),
                *(_lower_end(cell(part, n).held) for n in n_values),
                whole.held.share,
            ]
            for part in parts
            for whole in [cell(part, None)]
        ],
    )


def print_comparison(comparison: Comparison) -> None:
    """Print all candidates, and the winner for each tolerance."""
    tolerances = [f"{tolerance:g}" for tolerance in comparison.tolerances]

    def margin_at(level: int, row: Candidate) -> str:
        return f"{row.mean_margins[level]:.2f} ({as_cell(row.chain_failures[level].share)})"

    print_records(
        f"Methods and proxies on unseen natural moments ({ESTIMANDS[comparison.estimand]}, "
        f"confidence {comparison.confidence:g}, {comparison.natural_moments} natural of "
        f"{comparison.moments} moments)",
        comparison.candidates,
        ("method", lambda row: row.method),
        ("proxy", lambda row: row.proxy),
        ("coverage", lambda row: row.coverage.share),
        ("worst fifth", lambda row: row.worst_part.share),
        *(
            (f"margin (broken) at {tolerance}", partial(margin_at, level))
            for level, tolerance in enumerate(tolerances)
        ),
        ("holds", _holds),
    )
    for level, tolerance in enumerate(tolerances):
        print(f"tolerance {tolerance}: {_outcome(comparison, level)}")
    print(
        "The winner grants the largest mean margin among those not shown to break their promise;\n"
        "in brackets, how often some n' ≤ margin broke the tolerance "
        f"({1 - comparison.confidence:.3g} is allowed)."
    )
    if max(map(len, comparison.undecided)):
        print(
            "No difference: a paired test of the margins at the same moments (random signs of the\n"
            "differences, summed within each game), or one of whether it outlasts fits to other\n"
            "parts of the moments, finds none (0.05 divided by the number of others)."
        )
    for name in dict.fromkeys(row.method for row in comparison.candidates):
        if name not in METHODS:
            print(
                f"{name!r} cannot win, however large its margins: it is shown for comparison with "
                "the paper,\nand `safemargin fit` does not offer it."
            )
    print_gaps(comparison.gaps)
    for text in comparison.left_out:
        print(f"left out: {text}")
    for note in dict.fromkeys(note for row in comparison.candidates for note in row.notes):
        print(f"note: {note}")


def _holds(row: Candidate) -> str:
    if row.no_bound == 1:
        return "no bound"
    if row.holds and not row.can_win:
        return "yes, cannot win"
    return "yes" if row.holds else "no"


def _outcome(comparison: Comparison, level: int) -> str:
    """Say who wins at one tolerance, and which others are not shown to differ."""
    winner, undecided = comparison.winners[level], comparison.undecided[level]
    if winner is None:
        return "none holds; collect more moments"
    name, others = f"{winner.method} with {winner.proxy}", len(comparison.rivals()) - 1
    if not undecided:
        return name
    if len(undecided) == others:
        return (
            f"no difference that these moments could show between all {others + 1} that hold "
            f"and can win (the largest mean margin: {name})"
        )
    shown = ", ".join(f"{each.method} with {each.proxy}" for each in undecided[:3])
    more = f" and {len(undecided) - 3} more" if len(undecided) > 3 else ""
    return f"{name}; no difference that these moments could show from {shown}{more}"


def print_gaps(gaps: GapError | None) -> None:
    """Print what the powers of two would have missed, if that is known."""
    if gaps is None:
        return
    print_records(
        f"Gap error: what n = {', '.join(map(str, gaps.thin))} alone would have given instead of "
        f"all n up to {gaps.dense[-1]} (natural moments, fitted on themselves)",
        gaps.rows,
        ("tolerance", lambda row: f"{row.tolerance:g}"),
        ("mean margin, all n", lambda row: f"{row.dense_margin:.2f}"),
        ("powers of two", lambda row: f"{row.thin_margin:.2f}"),
        ("broken, all n", lambda row: row.dense_failures),
        ("powers of two", lambda row: row.thin_failures),
    )


def _interval(share: Share) -> str:
    return "–" if share.share is None else f"{share.low:.3f} – {share.high:.3f}"


def _lower_end(share: Share) -> str:
    """Write a share with the lower end of its interval, the one that matters, in brackets."""
    return "– " if share.share is None else f"{share.share:.3f} [{share.low:.2f}]"
