"""What a learned ranking captures, as a table."""

from __future__ import annotations

from safemargin.cli.console import print_records
from safemargin.core.text import counted
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
            (f"top {share.share:.0%}", lambda item, at=at: shown(item[1][at]))
            for at, share in enumerate(ranked[0][1])
        ),
    )
    lessons = f"{found.moments:,} moments" + f" and {found.labels:,} labels" * (found.labels > 0)
    print(f"learned from {lessons}: {found.recipe or 'nothing better'}")
    print(found)


def shown(share: Captured) -> str:
    """Format a share and its band: '62 % (51–70)'."""
    return f"{share.captured:.0%} ({100 * share.low:.0f}–{100 * share.high:.0f})"
