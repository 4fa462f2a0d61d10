"""What calling costs and catches, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
            *CALLS,
            ("measured loss", lambda row: shown(row.measured_loss, ".1%")),
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
    print(f"failures: {attention.fail or 'none'} ({attention.why})")
    print(
        "'blindly' is what as many calls at other times would have caught; 'measured loss' is the "
        "share of the losses\nmeasured at natural moments (n = the threshold) that fell into calls."
    )
    if attention.budget is not None:
        for tolerance, choice in zip(attention.tolerances, attention.choices, strict=True):
            print(f"budget {attention.budget}, tolerance {tolerance:g}: {_choice(choice)}")
    for note in attention.notes:
        print(f"note: {note}")


def _caught_text(caught: Caught | None) -> str | None:
    """Write how many failures were caught: '3 of 4 (75%, 19%–99%)'."""
    if caught is None or caught.share.share is None:
        return None
    share = caught.share
    return f"{share.count} of {share.tested} ({share.share:.0%}, {share.low:.0%}–{share.high:.0%})"


def shown(value: float | None, form: str) -> str | None:
    """Write a number in a format; None stays None."""
    return None if value is None else format(value, form)


CALLS: tuple[tuple[str, Callable[[Any], str | None]], ...] = (
    ("calls an hour", lambda row: shown(row.calls_per_hour, ",.1f")),
    ("mean length", lambda row: shown(row.mean_length, ".3g")),
    ("failures caught", lambda row: _caught_text(row.failures)),
    ("blindly", lambda row: shown(row.failures and row.failures.by_chance, ".1%")),
    ("lead", lambda row: shown(row.lead, ".3g")),
)
"""The columns on calls and what they catch, which all tables of oversight share."""


def _choice(choice: AttentionRow | None) -> str:
    if choice is None:
        return "even calling below 1 asks for more; accept a higher tolerance or loss"
    return (
        f"call_at={choice.call_at} ({choice.called:.2%} of decisions, "
        f"{choice.calls_per_hour:,.1f} calls an hour)"
    )
