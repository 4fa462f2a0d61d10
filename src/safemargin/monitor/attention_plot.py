"""A figure of what calling costs and catches; the only module here that loads matplotlib."""

from __future__ import annotations

import math

import matplotlib
from matplotlib.figure import Figure

from safemargin.monitor.attention import Attention, AttentionRow
from safemargin.study.plot_info import percent
from safemargin.study.plots import COLOURS


def attention_figure(attention: Attention) -> Figure:
    """Plot what was caught against calls per hour and against the share of decisions called."""
    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    first = attention.rows[0]
    what = "measured loss" if first.failures is None else f"failures ({attention.fail})"
    colours = matplotlib.colormaps[COLOURS]
    count = len(attention.tolerances)
    for axes, cost in ((left, "calls_per_hour"), (right, "called")):
        named: list[tuple[float, float]] = []  # the positions of the labels so far
        for index, tolerance in enumerate(attention.tolerances):
            rows = [row for row in attention.rows if row.tolerance == tolerance]
            drawn = [(getattr(row, cost), row) for row in rows if getattr(row, cost) > 0]
            colour = colours(0.05 + 0.8 * index / max(count - 1, 1))
            costs, caught = [at for at, _ in drawn], [_caught(row, what) for _, row in drawn]
            label = f"tolerance {tolerance:g}"
            shares = [share for share, _ in caught]
            axes.plot(costs, shares, marker="o", markersize=4, color=colour, label=label)
            if what != "measured loss":
                blindly = [chance for _, chance in caught]
                axes.plot(costs, blindly, color=colour, linewidth=1.2, linestyle=(0, (1, 1.3)))
            for (at, row), share in zip(drawn, shares, strict=True):
                spot = math.log10(at), share
                # Overlapping labels would be unreadable: only the first is drawn.
                if any(abs(spot[0] - x) < 0.12 and abs(spot[1] - y) < 0.06 for x, y in named):
                    continue
                named.append(spot)
                axes.annotate(
                    str(row.call_at), (at, share), xytext=(3, 4), textcoords="offset points",
                    fontsize=8, color=colour,
                )  # fmt: skip
        axes.set_ylim(-0.03, 1.09)
        axes.set_xscale("log")
        axes.margins(x=0.1)
    left.set_xlabel(f"calls an hour ({attention.agents_text}, {attention.rate:g} decisions/s)")
    right.set_xlabel("share of decisions called")
    left.set_ylabel(f"share of {what} caught")
    if attention.budget is not None:
        amount, share = attention.budget.amount, attention.budget.unit == "share"
        axes = right if share else left
        axes.axvline(amount, color="0.4", linewidth=1, linestyle="dotted")
        axes.annotate(
            f"budget {percent(amount) if share else attention.budget}", (amount, 0.02), fontsize=8,
            xytext=(4, 0), textcoords="offset points", color="0.3",
        )  # fmt: skip
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


def _caught(row: AttentionRow, what: str) -> tuple[float, float]:
    """Return the share that was caught, and what calling blindly would have caught."""
    if what == "measured loss":
        return row.measured_loss or 0.0, math.nan
    found = row.failures
    assert found is not None  # the same events lie behind every row
    return found.share.share or 0.0, found.by_chance
