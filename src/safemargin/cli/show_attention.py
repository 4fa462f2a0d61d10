"""What calling costs and catches, as tables."""

from __future__ import annotations

from safemargin.cli.console import print_records
from safemargin.core.text import counted
from safemargin.monitor.attention import Attention, AttentionRow, Caught


def print_attention(attention: Attention) -> None:
    """Print a table for each tolerance, and what the budget allows."""
    for tolerance in attention.tolerances:
        print_records(
            f"Calling at tolerance {tolerance:g} (confidence {attention.confidence:g}, "
            f"{attention.proxy}), {attention.agents_text} at {attention.rate:g} decisions/s; "
            f"caught: a call within {counted(attention.within, 'decision')}",
            [row for row in attention.rows if row.tolerance == tolerance],
            ("call below", lambda row: row.call_at),
            ("until", lambda row: row.release_at),
            ("decisions called", lambda row: f"{row.called:.2%}"),
            ("calls an hour", lambda row: f"{row.calls_per_hour:,.1f}"),
            ("mean length", lambda row: _shown(row.mean_length, ".3g")),
            ("ends caught", lambda row: _caught(row.ends)),
            ("blindly", _chance),
            ("lead", lambda row: _shown(row.lead, ".3g")),
            ("setbacks caught", lambda row: _caught(row.setbacks)),
            ("measured loss", lambda row: _shown(row.measured_loss, ".1%")),
        )
    print(
        f"{counted(attention.episodes, 'episode')} ({attention.distinct_episodes:,} distinct), "
        f"{counted(attention.decisions, 'decision')}. "
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


def _caught(caught: Caught | None) -> str | None:
    if caught is None or caught.share.share is None:
        return None
    share = caught.share
    return f"{share.count} of {share.tested} ({share.share:.0%}, {share.low:.0%}–{share.high:.0%})"


def _chance(row: AttentionRow) -> str | None:
    found = row.ends or row.setbacks
    return None if found is None else f"{found.by_chance:.1%}"


def _shown(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _choice(choice: AttentionRow | None) -> str:
    if choice is None:
        return "even calling below 1 asks for more; accept a higher tolerance or loss"
    return (
        f"call_at={choice.call_at} ({choice.called:.2%} of decisions, "
        f"{choice.calls_per_hour:,.1f} calls an hour)"
    )
