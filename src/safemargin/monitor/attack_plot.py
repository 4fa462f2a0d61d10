"""A figure of what attacks cost, by what times them; it loads matplotlib."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safemargin.monitor.attack import Attacked
from safemargin.study.plot_info import percent
from safemargin.study.plots import COLOURS

MARKERS = "os^Dv<>P"


def attack_figure(found: Attacked) -> Figure:
    """Plot the loss of a game against the budget, one line with a 95 % band for each ranking."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    draw_attack(axes, found)
    axes.set_title(
        f"What attacks by {found.words} cost\n({found.games} games for each point, 95 % bands)",
        fontsize=10,
    )
    return figure


def draw_attack(axes: Axes, found: Attacked) -> None:
    """Draw the lines of one agent under one attack, with what they mean."""
    names = list(dict.fromkeys(row.ranking for row in found.rows if row.loss is not None))
    colours = matplotlib.colormaps[COLOURS]
    for number, name in enumerate(names):
        rows = [row for row in found.rows if row.ranking == name]
        at = [row.budget for row in rows]
        losses = [row.loss or 0.0 for row in rows]
        halves = [row.half_width or 0.0 for row in rows]
        colour = colours(0.05 + 0.8 * number / max(len(names) - 1, 1))
        marker = MARKERS[number % len(MARKERS)]
        axes.errorbar(
            at, losses, halves, color=colour, marker=marker, markersize=4, capsize=2,
            linewidth=1.2, elinewidth=0.8, label=name,
        )  # fmt: skip
        below = [loss - half for loss, half in zip(losses, halves, strict=True)]
        above = [loss + half for loss, half in zip(losses, halves, strict=True)]
        axes.fill_between(at, below, above, color=colour, alpha=0.12, linewidth=0)
    budgets = sorted({row.budget for row in found.rows})
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(budgets, [percent(budget) for budget in budgets])
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel(f"attacked steps of a game\n(it has {found.steps:,.0f} without an attack)")
    axes.set_ylabel(f"loss of score (without an attack: {found.score:.3g})")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.07 * len(names) * (high - low))  # room for the names
    axes.legend(fontsize=8, frameon=False, loc="upper left")
