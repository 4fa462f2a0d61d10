"""What rankings of decisions capture, and what people see who follow one, as tables."""

from __future__ import annotations

from safemargin.cli.console import print_records
from safemargin.cli.show_attention import CALLS, shown
from safemargin.core.text import counted
from safemargin.monitor.ranking import RankedOversight
from safemargin.study.learning_rankings import LearnedRanking
from safemargin.validation.capture import Captured


def print_ranking(found: LearnedRanking) -> None:
    """Print what every ranking captures of the target, the best first."""
    ranked = sorted(found.captured.items(), key=lambda item: -item[1][1].captured)
    print_records(
        f"Share of all {found.target} in the moments that a ranking puts first (95 % band), at "
        f"{counted(found.natural, 'natural moment')} that no model had seen; mean "
        f"{found.mean:.3g}",
        ranked,
        ("ranking", lambda item: item[0]),
        *(
            (f"top {share.share:.0%}", lambda item, at=at: share_text(item[1][at]))
            for at, share in enumerate(ranked[0][1])
        ),
    )
    lessons = f"{found.moments:,} moments" + f" and {found.labels:,} labels" * (found.labels > 0)
    print(f"learned from {lessons}: {found.recipe or 'nothing better'}")
    print(found)


def share_text(share: Captured) -> str:
    """Format a share and its band: '62 % (51–70)'."""
    return f"{share.captured:.0%} ({100 * share.low:.0f}–{100 * share.high:.0f})"


def print_oversight(found: RankedOversight) -> None:
    """Print what one ranking, lot and regret itself show, and what that means for a person."""
    looked = f"{found.budget.amount:.3g} of decisions"
    if found.budget.unit == "hour":
        looked = f"{found.budget.text}, of {found.length:g} s or more"
    print_records(
        f"Looking at {looked}, {found.agents_text} at {found.rate:g} "
        f"decisions/s; caught: a look within {counted(found.within, 'decision')}",
        found.rows,
        ("ranking", lambda row: row.ranking),
        ("looked at", lambda row: shown(row.looked, ".2%")),
        *CALLS,
        ("regret seen", lambda row: None if row.regret is None else share_text(row.regret)),
    )
    print(f"failures: {found.fail or 'none'} ({found.why})")
    print(f"{counted(found.episodes, 'episode')}, {counted(found.decisions, 'decision')}.")
    row = found.rows[0]
    if row.calls_per_hour is not None and row.attention is not None:
        length = (row.mean_length or 0.0) / found.rate
        text = f"A person gets {row.calls_per_hour:,.0f} calls an hour, of {length:.2g} s each"
        if found.fatigue is not None:
            text += f", reviews {row.attention:.0%} of them well"
        if row.failures_seen is not None:
            text += f", and catches {row.failures_seen:.0%} of failures"
        print(text + ".")
    for note in found.notes:
        print(f"note: {note}")
