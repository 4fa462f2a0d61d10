"""What calling costs and catches, as tables."""

from __future__ import annotations

from safemargin.cli.console import print_table
from safemargin.monitor.attention import Attention, AttentionRow, Caught


def print_attention(attention: Attention) -> None:
    """A table for each tolerance, and what the budget allows."""
    for tolerance in attention.tolerances:
        print_table(
            f"Calling at tolerance {tolerance:g} (confidence {attention.confidence:g}, "
            f"{attention.proxy}), {attention.agents_text} at {attention.rate:g} decisions/s; "
            f"caught: a call within {attention.within} decisions",
            [
                "call below",
                "until",
                "decisions called",
                "calls an hour",
                "mean length",
                "ends caught",
                "blindly",
                "lead",
                "setbacks caught",
                "measured loss",
            ],
            [
                [
                    str(row.call_at),
                    str(row.release_at),
                    f"{row.called:.2%}",
                    f"{row.calls_per_hour:,.1f}",
                    _number(row.mean_length),
                    _caught(row.ends),
                    _chance(row),
                    _number(row.lead),
                    _caught(row.setbacks),
                    "–" if row.measured_loss is None else f"{row.measured_loss:.1%}",
                ]
                for row in attention.rows
                if row.tolerance == tolerance
            ],
        )
    print(
        f"{attention.episodes:,} episodes ({attention.distinct_episodes:,} distinct), "
        f"{attention.decisions:,} decisions. "
        + (
            "Every episode was judged by margins fitted without it."
            if attention.held_out
            else "The margins have seen these episodes, which flatters them."
        )
    )
    print(
        "'ends' are episodes that ended by termination, 'setbacks' steps with a negative reward, "
        "'blindly' what as\nmany calls at other times would have caught; 'measured loss' is the "
        "share of the losses measured at natural\nmoments (n = the threshold) that fell into calls."
    )
    if attention.budget is not None:
        for tolerance, choice in zip(attention.tolerances, attention.choices, strict=True):
            print(f"budget {attention.budget:.3g}, tolerance {tolerance:g}: {_choice(choice)}")
    for note in attention.notes:
        print(f"note: {note}")


def _caught(caught: Caught | None) -> str:
    if caught is None or caught.share.share is None:
        return "–"
    share = caught.share
    return f"{share.count} of {share.tested} ({share.share:.0%}, {share.low:.0%}–{share.high:.0%})"


def _chance(row: AttentionRow) -> str:
    found = row.ends or row.setbacks
    return "–" if found is None else f"{found.by_chance:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _choice(choice: AttentionRow | None) -> str:
    if choice is None:
        return "even calling below 1 asks for more; accept a higher tolerance or loss"
    return (
        f"call_at={choice.call_at} ({choice.called:.2%} of decisions, "
        f"{choice.calls_per_hour:,.1f} calls an hour)"
    )
