"""Draws the pictures of a study from the numbers in `plot_info`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from safemargin.core.files import written_whole
from safemargin.core.measured import RANDOM, USUAL, Measured
from safemargin.core.records import Tuples
from safemargin.core.settings import Settings
from safemargin.core.text import readable
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import ESTIMANDS
from safemargin.margins.lookup import Margins
from safemargin.study.judging import minimum_bandwidth
from safemargin.study.plot_info import (
    HeatmapInfo,
    HistogramInfo,
    KdeInfo,
    KdePanel,
    heatmap_info,
    histogram_info,
    kde_info,
    percent,
    spaced,
)

COLOURS = "cividis"  # perceptually uniform, and the same for the colour-blind
CURVES: dict[str, dict[str, Any]] = {
    name: {"color": "white", "linewidth": 1.5, "linestyle": style}
    for name, style in (("percentile", "solid"), ("mean", (0, (5, 2))), ("median", (0, (1, 1.3))))
}


def study_figures(
    tuples: Tuples, margins: Margins, *, minimum_bandwidth: float = 0.0
) -> dict[str, Figure]:
    """Draw all pictures of a study, by the names of their files."""
    densities = kde_info(tuples, confidence=margins.confidence, minimum_bandwidth=minimum_bandwidth)
    left_out = 0.05 if margins.method == "paper" else 0.0  # only the paper's method leaves any out
    figures = {
        "densities": kde_figure(densities, margins.measured),
        "proxies": histogram_figure(histogram_info(tuples, drop_highest=left_out)),
    }
    if not margins.bound.looks_at_n:  # else there is no single proxy axis
        figures["margins"] = heatmap_figure(heatmap_info(margins))
    return figures


def kde_figure(info: KdeInfo, measured: Measured = USUAL) -> Figure:
    """Draw a grid of densities with contours, moments, and the mean, median and β curves."""
    count = len(info.panels)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = math.ceil(count / columns)
    scale = 1.5 if count == 1 else 1.0
    size = (3.3 * scale * columns + 0.5, 2.6 * scale * rows + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, cell in enumerate(axes.flat):
        if number >= count:
            cell.remove()
            continue
        _draw_density(cell, info.panels[number])
        if number + columns >= count:  # the lowest of its column
            cell.set_xlabel(f"proxy: {readable(info.proxy)}", fontsize=9)
    title = f"True criticality given the proxy, {len(info.panels[0].proxies):,} moments"
    if info.dropped:
        title += "\n" if count == 1 else " "
        title += f"({info.dropped} with the highest proxies left out)"
    if count < len(info.n_values):
        title += f"\n{count} of {len(info.n_values)} values of n shown, evenly spaced"
    figure.suptitle(title, fontsize=11)
    after = "" if measured.perturb == RANDOM else f" after n {measured.mistakes}"
    figure.supylabel(f"true criticality: mean loss{after} ({measured.unit})", fontsize=10)
    names = {"percentile": f"{percent(info.confidence)} percentile"}
    colours = matplotlib.colormaps[COLOURS]
    handles = [
        *(Line2D([], [], label=names.get(name, name), **CURVES[name]) for name in CURVES),
        Line2D([], [], marker="o", color="none", markersize=4, label="moment",
               markerfacecolor="white", markeredgecolor="black", markeredgewidth=0.5),
        Patch(facecolor=colours(0.0), label="unlikely"),
        Patch(facecolor=colours(1.0), label="likely at this proxy"),
    ]  # fmt: skip
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=6 if columns == 3 else 3,
        fontsize=8.5,
        frameon=False,
        handlelength=2.6,
    )
    for line in legend.get_lines()[:3]:
        line.set_path_effects([withStroke(linewidth=3, foreground="black")])
    return figure


def heatmap_figure(info: HeatmapInfo) -> Figure:
    """Draw proxy × tolerance, one colour per margin, large areas labelled with their margin."""
    from scipy.ndimage import distance_transform_edt  # here: only labels need it

    fitted = info.fitted
    steps = [0, *fitted.n_values]
    colours = ListedColormap(
        [matplotlib.colormaps[COLOURS](share) for share in np.linspace(0, 1, len(steps))]
    )
    order = np.searchsorted(steps, info.margins)  # [tolerances, bins] which step
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    image = axes.pcolormesh(
        info.proxies,
        info.tolerances,
        order,
        cmap=colours,
        norm=BoundaryNorm(np.arange(len(steps) + 1) - 0.5, len(steps)),
        shading="nearest",
        rasterized=True,
    )
    axes.set_xlim(info.proxies[0], info.proxies[-1])
    axes.set_ylim(info.tolerances[0], info.tolerances[-1])
    # Labels are placed by what the eye sees, as bins of a rank-based grid differ in width.
    positions = np.linspace(info.proxies[0], info.proxies[-1], 200)
    nearest = np.abs(positions[:, np.newaxis] - info.proxies).argmin(axis=1)
    seen = order[:, nearest]  # [tolerances, positions]
    height, width = seen.shape
    for step, margin in enumerate(steps):
        area = np.pad(seen == step, 1)
        if not area.any():
            continue
        # The centre of the largest disc that fits, in units of the figure's height.
        reach = distance_transform_edt(area, sampling=(1 / height, 1.35 / width))[1:-1, 1:-1]
        row, column = np.unravel_index(np.argmax(reach), reach.shape)
        if reach[row, column] < 0.03:
            continue
        red, green, blue, _ = colours(step)
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        axes.text(
            positions[column],
            info.tolerances[row],
            str(margin),
            ha="center",
            va="center",
            fontsize=9,
            color="white" if dark else "black",
        )
    axes.set_xlabel(f"proxy: {readable(fitted.proxy)}")
    about = fitted.measured
    what = "discounted reward" if about.usual else about.loss
    axes.set_ylabel(f"tolerance ζ ({what})")
    axes.set_title(
        f"Safety margin: {ESTIMANDS[fitted.estimand]}, {percent(fitted.confidence)} confidence\n"
        f"method: {fitted.method}",
        fontsize=11,
    )
    # Ticks at equal distances where the number of steps allows it: 0, 4, 8, … 32.
    even = [most for most in range(12, 5, -1) if (len(steps) - 1) % (most - 1) == 0]
    shown = spaced(len(steps), even[0] if even else 12)
    bar = figure.colorbar(image, ax=axes, ticks=shown, pad=0.02)
    bar.ax.minorticks_off()
    bar.set_ticklabels([str(steps[step]) for step in shown])
    bar.set_label(f"margin ({fitted.measured.mistakes} that can be afforded)")
    return figure


def histogram_figure(info: HistogramInfo) -> Figure:
    """Draw the proxies of natural and spread moments, the part that a fit leaves out shaded."""
    colours = matplotlib.colormaps[COLOURS]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    if info.cut_off is not None:
        axes.axvspan(
            info.cut_off,
            info.edges[-1],
            facecolor="0.88",
            edgecolor="0.7",
            hatch="///",
            linewidth=0,
            label=f"left out of the fit: highest {percent(info.drop_highest)} "
            f"({info.dropped} moments)",
        )
    if info.natural.any():
        label = f"natural ({info.natural.sum():,})"
        axes.stairs(info.natural, info.edges, fill=True, color=colours(0.85), label=label)
    if info.spread.any():
        label = f"spread ({info.spread.sum():,})"
        axes.stairs(info.spread, info.edges, color=colours(0.05), linewidth=1.4, label=label)
    axes.set_xlim(info.edges[0], info.edges[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"proxy: {readable(info.proxy)}")
    axes.set_ylabel("moments per bin")
    axes.set_title("Proxies of the measured moments", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> Path:
    """Write a picture as .png, .svg or .pdf, by its name, and make its folder if necessary."""
    target = Path(path)
    if target.parent.is_file():
        raise InvalidInput(f"{target.parent} is a file; name a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as draft:
            figure.savefig(draft, dpi=dpi)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{target} cannot be written: {error}") from error
    return target


def _draw_density(axes: Axes, panel: KdePanel) -> None:
    density = panel.density
    axes.set_title(f"n = {panel.n}", fontsize=10)
    axes.tick_params(labelsize=8)
    axes.set_facecolor(matplotlib.colormaps[COLOURS](0.0))
    axes.set_xlim(density.proxy[0], density.proxy[-1])
    low, high = density.criticality[0], density.criticality[-1]
    if high > low:
        # The square root shows thin tails; the upper end is capped so that one spike of equal
        # criticalities does not turn the rest dark.
        top = max(float(np.quantile(density.weights, 0.995)), 0.01 * float(density.weights.max()))
        norm = PowerNorm(0.5, vmin=0, vmax=top, clip=True)
        axes.pcolormesh(
            density.proxy,
            density.criticality,
            density.weights,
            cmap=COLOURS,
            norm=norm,
            shading="nearest",
            rasterized=True,
        )
        axes.contour(
            density.proxy,
            density.criticality,
            np.minimum(density.weights, top),
            levels=[top * share**2 for share in (0.2, 0.4, 0.6, 0.8)],
            colors="white",
            linewidths=0.4,
            alpha=0.6,
        )
        axes.set_ylim(low, high)
    else:  # all criticalities are equal: a density would be a single line
        axes.set_ylim(low - 0.5, low + 0.5)
        axes.text(0.5, 0.62, "all criticalities are equal", transform=axes.transAxes,
                  ha="center", color="white", fontsize=8.5)  # fmt: skip
    axes.scatter(panel.proxies, panel.criticalities, s=3, c="white", alpha=0.3, linewidths=0)
    for name in reversed(CURVES):
        axes.plot(
            density.proxy,
            getattr(panel, name),
            path_effects=[withStroke(linewidth=3, foreground="black")],
            **CURVES[name],
        )


def save_figures(tuples: Tuples, margins: Margins, folder: Path, picture_format: str) -> list[Path]:
    """Draw a study's figures into a folder; return their paths."""
    bandwidth = minimum_bandwidth(Settings.from_mapping(margins.settings))
    figures = study_figures(tuples, margins, minimum_bandwidth=bandwidth)
    return [
        save_figure(figure, folder / f"{name}.{picture_format}") for name, figure in figures.items()
    ]
