"""The paper's figures, and a few more, from stored studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from capture import BUDGETS
from faults import attacks
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_values import AGENTS, CAPTURED, N_VALUES
from stored import StoredStudy
from supervision import WHATS, WHO, differences, found_of, games_of, interval
from tables import (
    BUDGET,
    COUNTED,
    METHODS,
    MISSING,
    captures,
    densities_of,
    ends_of_lives,
    margins_of,
)

from safemargin.core.text import readable
from safemargin.monitor.attack_plot import draw_attack
from safemargin.study import plot_info, plots

DPI = 90
"""Small files: the pictures lie in the repository."""
APPROACH = 120
DENSE_LEVELS = (0.25, 0.5, 0.9)
STYLES = ("-", "--", ":", "-.")

Studies = Mapping[str, StoredStudy]


def draw_all(studies: Studies, folder: Path) -> list[Path]:
    """Draw every figure that the studies allow, and return the paths."""
    figures: dict[str, Figure] = {}
    for agent in AGENTS:
        if agent not in studies:
            continue
        study = studies[agent]
        figures[f"{agent}-densities"] = plots.kde_figure(densities_of(study))
        histogram = plot_info.histogram_info(study.tuples())
        figures[f"{agent}-proxies"] = plots.histogram_figure(histogram)
        for method in METHODS:
            heatmap = plot_info.heatmap_info(margins_of(study, method))
            figures[f"{agent}-margins-{method}"] = plots.heatmap_figure(heatmap)
    if any(agent in studies for agent in CAPTURED):
        figures["loss-capture"] = capture_figure(studies)
        figures["before-death"] = approach_figure(studies)
    if any(found_of(studies, agent) for agent in CAPTURED):
        figures["supervision"] = supervision_figure(studies)
    if attacks():
        figures["attacks"] = attacks_figure()
    if "pong-apex-dense" in studies:
        figures["pong-apex-dense"] = dense_figure(studies["pong-apex-dense"])
    return [
        plots.save_figure(figure, folder / f"{name}.png", dpi=DPI)
        for name, figure in figures.items()
    ]


def agent_pictures(studies: Studies) -> str:
    """Return the pictures of every agent that was studied, as Markdown."""
    shown = [
        f"### {agent}\n\n"
        f"![True criticality given the proxy, for each n](images/{agent}-densities.png)\n"
        f"![Margins by the default method](images/{agent}-margins-calibrated.png)\n"
        f"![Margins by the paper's method](images/{agent}-margins-paper.png)\n"
        f"![Proxies of natural and spread moments](images/{agent}-proxies.png)"
        for agent in AGENTS
        if agent in studies
    ]
    return "\n\n".join(shown)


def attack_picture(studies: Studies) -> str:
    """Return Markdown for the curves of attacks; empty where there are none."""
    return "![What attacks cost against their number](images/attacks.png)" * bool(attacks())


def attacks_figure() -> Figure:
    """Draw what attacks of the least-scored action cost, by what times them, agent by agent."""
    shown = {
        name: found
        for name, found in attacks().items()
        if found.attack == "worst" and len({row.budget for row in found.rows}) > 1
    }
    figure = Figure(figsize=(4.1 * len(shown), 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (name, found) in zip(panels, shown.items(), strict=True):
        draw_attack(axes, found)
        axes.set_title(f"{name.split('.')[0]}, {found.games} games a point", fontsize=10)
    return figure


def capture_picture(studies: Studies) -> str:
    """Return Markdown for the curve of loss capture; empty where there is none."""
    drawn = any(agent in studies for agent in CAPTURED)
    return "![Deaths captured against decisions looked at](images/loss-capture.png)" * drawn


def supervision_picture(studies: Studies) -> str:
    """Return Markdown for the picture of what an overseer changed; empty where none has played."""
    drawn = any(found_of(studies, agent) for agent in CAPTURED)
    return "![Deaths and reward against those without an overseer](images/supervision.png)" * drawn


def approach_picture(studies: Studies) -> str:
    """Return Markdown for the proxy before a death; empty where it is unknown."""
    drawn = any(agent in studies for agent in CAPTURED)
    return "![The proxy before a reported death](images/before-death.png)" * drawn


def dense_picture(studies: Studies) -> str:
    """Return Markdown for the bound at every n; empty where it was not studied."""
    drawn = "pong-apex-dense" in studies
    return "![The 95 % bound against n](images/pong-apex-dense.png)" * drawn


def capture_figure(studies: Studies) -> Figure:
    """Draw the deaths captured over the share of decisions looked at, by where a death counts."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(len(COUNTED), len(CAPTURED), sharex=True, sharey=True)
    for row, counted in zip(panels, COUNTED, strict=True):
        for axes, (agent, paper) in zip(row, CAPTURED.items(), strict=True):
            axes.set_title(f"{agent}, {counted}")
            axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="at random")
            if counted == COUNTED[0]:
                label = f"the paper: {paper:.0%} at 5 %"
                axes.plot([BUDGET], [paper], "k*", markersize=11, label=label)
            if agent in studies and counted in ends_of_lives(studies[agent]):
                _draw_captures(axes, studies[agent], counted)
            else:
                _say_missing(axes)
            axes.legend(loc="best", fontsize=8, frameon=False)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1)
        row[0].set_ylabel("share of deaths captured")
    for axes in panels[-1]:
        axes.set_xlabel("share of decisions looked at")
    return figure


def _draw_captures(axes: Axes, study: StoredStudy, counted: str) -> None:
    for place, (name, found) in enumerate(captures(study, counted).items()):
        label = "lowest margin" if name == "margin" else f"highest {readable(name)}"
        style = STYLES[place % len(STYLES)]
        (line,) = axes.plot(BUDGETS, found.share, style, linewidth=1.6, label=label)
        if name == study.default_proxy:
            color = line.get_color()
            band = f"95 % band of {readable(name)}"
            axes.fill_between(BUDGETS, found.low, found.high, color=color, alpha=0.15, label=band)


def _say_missing(axes: Axes) -> None:
    axes.text(0.5, 0.5, MISSING, ha="center", va="center", transform=axes.transAxes, color="0.4")


def approach_figure(studies: Studies) -> Figure:
    """Plot the rank of the proxy among all decisions, this many decisions before a death."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(CAPTURED), sharey=True)
    for axes, agent in zip(panels, CAPTURED, strict=True):
        axes.set_title(agent)
        axes.set_xlabel("decisions before the reported death")
        axes.set_xlim(APPROACH, 1)
        axes.set_ylim(0, 1)
        if agent not in studies:
            _say_missing(axes)
            continue
        study = studies[agent]
        proxies = [life.proxies[study.default_proxy] for life in study.lives]
        every = np.sort(np.concatenate(proxies))
        ranks = np.array(
            [
                np.searchsorted(every, values[-APPROACH:]) / len(every)
                for life, values in zip(study.lives, proxies, strict=True)
                if life.died and len(values) >= APPROACH
            ]
        )  # [deaths, decisions]
        back = np.arange(APPROACH, 0, -1)
        low, middle, high = np.quantile(ranks, [0.25, 0.5, 0.75], axis=0)
        axes.fill_between(back, low, high, alpha=0.25, linewidth=0, label="middle half")
        axes.plot(back, middle, linewidth=1.6, label="median")
        if study.last_chances:
            last = float(np.median(list(study.last_chances.values())))
            axes.axvline(last, color="0.3", linestyle="--", label=f"last chance ({last:g})")
        axes.legend(fontsize=8, frameon=False, loc="lower left")
    panels[0].set_ylabel("share of decisions with a lower proxy")
    return figure


def supervision_figure(studies: Studies) -> Figure:
    """Draw deaths and reward under each strategy, against the same games without an overseer."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(len(CAPTURED), len(WHATS), sharex="col", sharey=True)
    found = {agent: found_of(studies, agent) for agent in CAPTURED}
    games = {agent: games_of(one) if one else {} for agent, one in found.items()}
    names = [name for name in WHO if any(name in played for played in games.values())][1:]
    for row, (agent, played) in zip(panels, games.items(), strict=True):
        for axes, what in zip(row, WHATS, strict=True):
            axes.set_title(f"{agent}, {what}")
            axes.axvline(0, color="0.6", linewidth=1)
            for place, name in enumerate(names):
                both = differences(played, name, "nobody", what) if name in played else []
                if len(both) < 2:
                    axes.text(0, place, f" {MISSING}", va="center", color="0.4", fontsize=8)
                    continue
                mean, low, high = interval(both)
                axes.plot([low, high], [place, place], color="C0", linewidth=1.6)
                axes.plot([mean], [place], "o", color="C0")
            axes.set_yticks(range(len(names)), [WHO[name] for name in names])
            axes.set_ylim(len(names) - 0.5, -0.5)
    for axes, what in zip(panels[-1], WHATS, strict=True):
        axes.set_xlabel(f"{what} per 1,000 decisions, against nobody")
    return figure


def dense_figure(study: StoredStudy) -> Figure:
    """Draw the bound against n at a few proxies: every n, with the powers of two marked."""
    tuples = study.tuples()
    places = [tuples.n_values.index(n) for n in N_VALUES]
    proxies = np.quantile(tuples.proxies[tuples.phases == "natural"], DENSE_LEVELS)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("the paper's fit, each n by itself", "the default, C_n")
    for axes, method, title in zip(panels, METHODS, titles, strict=True):
        curves = margins_of(study, method).bound.at(proxies)  # [proxies, n]
        for curve, level, proxy, style in zip(curves, DENSE_LEVELS, proxies, STYLES, strict=False):
            label = f"proxy {proxy:.2f} (higher than {level:.0%} of natural moments)"
            (line,) = axes.plot(tuples.n_values, curve, style, label=label, linewidth=1.6)
            axes.plot(N_VALUES, curve[places], "o", color=line.get_color(), markersize=5)
        axes.set_title(title)
        axes.set_xlabel("n random actions")
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    panels[0].set_ylabel("95 % bound on the loss")
    return figure
