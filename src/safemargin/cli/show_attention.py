"""What calling costs and catches, as tables that can be read and as a picture."""

from __future__ import annotations

import math

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safemargin.cli.console import print_table
from safemargin.monitor.attention import Attention, AttentionRow, Caught
from safemargin.study.plot_info import percent
from safemargin.study.plots import COLOURS


def print_attention(attention: Attention) -> None:
    """A table for each tolerance, and what the budget allows."""
    for tolerance in attention.tolerances:
        print_table(
            f"Calling at tolerance {tolerance:g} (confidence {attention.confidence:g}, "
            f"{attention.proxy}), {_agents(attention)} at {attention.rate:g} decisions/s; caught: "
            f"a call within {attention.within} decisions",
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


def attention_figure(attention: Attention) -> Figure:
    """Calls an hour, and share of decisions called, against what was caught."""
    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    what = _most_telling(attention)
    colours = matplotlib.colormaps[COLOURS]
    count = len(attention.tolerances)
    named: tuple[list[tuple[float, float]], list[tuple[float, float]]] = [], []
    for place, tolerance in enumerate(attention.tolerances):
        rows = [row for row in attention.rows if row.tolerance == tolerance]
        colour = colours(0.05 + 0.8 * place / max(count - 1, 1))
        label = f"tolerance {tolerance:g}"
        per_hour = [row.calls_per_hour for row in rows]
        _draw(left, rows, per_hour, what, colour, label, named[0])
        _draw(right, rows, [row.called for row in rows], what, colour, label, named[1])
    left.set_xlabel(f"calls an hour ({_agents(attention)}, {attention.rate:g} decisions/s)")
    right.set_xlabel("share of decisions called")
    left.set_ylabel(f"share of {what} caught")
    if attention.budget is not None:
        right.axvline(attention.budget, color="0.4", linewidth=1, linestyle="dotted")
        right.annotate(
            f"budget {percent(attention.budget)}", (attention.budget, 0.02), fontsize=8,
            xytext=(4, 0), textcoords="offset points", color="0.3",
        )  # fmt: skip
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.09)
        axes.set_xscale("log")
        axes.margins(x=0.1)
    handles, labels = left.get_legend_handles_labels()
    (blind,) = left.plot([], [], color="0.5", linestyle=(0, (1, 1.3)), linewidth=1.2)
    if what != "measured loss":
        handles, labels = [*handles, blind], [*labels, "as many calls at other times"]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    figure.suptitle(
        f"What calling below a margin costs and catches ({attention.episodes:,} episodes"
        + (", held out)" if attention.held_out else ", not held out)"),
        fontsize=11,
    )
    return figure


def _draw(
    axes: Axes,
    rows: list[AttentionRow],
    places: list[float],
    what: str,
    colour: tuple[float, float, float, float],
    label: str,
    named: list[tuple[float, float]],
) -> None:
    """One tolerance; `named` holds where thresholds have been written already."""
    drawn = [(place, row) for place, row in zip(places, rows, strict=True) if place > 0]
    across = [place for place, _ in drawn]
    shares = [_share(row, what) for _, row in drawn]
    axes.plot(across, shares, marker="o", markersize=4, color=colour, label=label)
    if what != "measured loss":
        chances = [_events(row, what).by_chance for _, row in drawn]
        axes.plot(across, chances, color=colour, linewidth=1.2, linestyle=(0, (1, 1.3)))
    for (place, row), share in zip(drawn, shares, strict=True):
        spot = math.log10(place), share
        # Thresholds that fall onto one another would be unreadable: the first is named.
        if any(abs(spot[0] - x) < 0.12 and abs(spot[1] - y) < 0.06 for x, y in named):
            continue
        named.append(spot)
        axes.annotate(
            str(row.call_at), (place, share), xytext=(3, 4), textcoords="offset points",
            fontsize=8, color=colour,
        )  # fmt: skip


def _most_telling(attention: Attention) -> str:
    """Which events to draw: ends of episodes, else setbacks, else what was measured."""
    first = attention.rows[0]
    if first.ends is not None:
        return "ends"
    return "setbacks" if first.setbacks is not None else "measured loss"


def _events(row: AttentionRow, what: str) -> Caught:
    found = row.ends if what == "ends" else row.setbacks
    assert found is not None  # the same events lie behind every row
    return found


def _share(row: AttentionRow, what: str) -> float:
    if what == "measured loss":
        return row.measured_loss or 0.0
    return _events(row, what).share.share or 0.0


def _agents(attention: Attention) -> str:
    return "1 agent" if attention.agents == 1 else f"{attention.agents:,} agents"


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
