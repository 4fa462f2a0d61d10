"""How criticality and margins developed over training, as one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from safemargin.core.text import readable
from safemargin.study.tracing import Evolution, Known, Stage
from safemargin.validation.gate_files import number
from safemargin.web.drawing import Line, line_chart
from safemargin.web.gate_report import html_page

COLORS = (
    "var(--accent)",
    "var(--reward)",
    "var(--middle)",
    "var(--low)",
    "var(--high)",
    "var(--unknown)",
)


def evolution_page(found: Evolution) -> str:
    """Return the page with all styles, numbers and pictures inside; it needs no script."""
    stages = found.stages
    first, last = stages[0], stages[-1]
    return html_page(
        f"{found.environment}: {len(stages)} checkpoints",
        "How many mistakes it could afford, over training",
        f"{len(stages)} checkpoints in {found.environment}, from {first.name} to {last.name}",
        [
            f"<section><h2>Over training</h2><p class='quiet'>{stages[0].moments} natural moments "
            f"of each checkpoint, on the same starts (seed {found.seed}). Bands are 95 % "
            f"intervals, each for itself.</p>{_charts(found)}</section>",
            f"<section><h2>The figures</h2>{_table(found)}</section>",
        ],
    )


def _charts(found: Evolution) -> str:
    stages, proxy = found.stages, readable(found.stages[-1].proxy)
    at = [f"tolerance {each:g}" for each in found.tolerances]
    charts = [
        ("Return of a game", _chart(stages, ["return"], lambda s: [s.mean_return], "reward")),
        (
            f"Criticality: the mean loss after n {found.measured.mistakes}",
            _chart(stages, [f"n = {n}" for n in found.n_values], lambda s: s.criticality, "loss"),
        ),
        (
            f"Affordable {found.measured.mistakes}, by true losses",
            _chart(stages, at, lambda s: s.affordable, "actions"),
        ),
        (
            f"Moments that afford fewer than {found.call_at}",
            _chart(stages, at, lambda s: s.critical, "share of moments"),
        ),
        (
            f"Margins granted by the {proxy} at confidence {found.confidence:g}",
            _chart(stages, at, lambda s: [Known(g, g, g) for g in s.granted], "mean margin"),
        ),
        (
            f"How well the {proxy} ranks losses (Spearman)",
            _chart(stages, [proxy], lambda s: [s.proxy_quality], "correlation", from_zero=False),
        ),
    ]
    whole = "".join(f"<div><h3>{escape(title)}</h3>{chart}</div>" for title, chart in charts)
    return f'<div class="charts">{whole}</div>'


def _chart(
    stages: Sequence[Stage],
    names: Sequence[str],
    values: Callable[[Stage], Sequence[Known]],
    label: str,
    *,
    from_zero: bool = True,
) -> str:
    """Return a chart with a line for each name and a point for each checkpoint."""
    x = list(range(len(stages)))
    columns = list(zip(*(values(stage) for stage in stages), strict=True))
    lines = [
        Line(
            name,
            x,
            [each.mean for each in column],
            COLORS[index % len(COLORS)],
            low=[each.low for each in column],
            high=[each.high for each in column],
            dots=True,
        )
        for index, (name, column) in enumerate(zip(names, columns, strict=True))
    ]
    every = max(1, -(-len(stages) // 6))  # at most six names fit
    ticks = [(float(i), _short(stages[i].name)) for i in x if i % every == 0]
    return line_chart(lines, "checkpoint", label, x_ticks=ticks, y_from_zero=from_zero)


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"…{name[-11:]}"


def _table(found: Evolution) -> str:
    heads = ["checkpoint", "return", f"loss after {found.n_values[-1]}"]
    heads += [f"affordable at {each:g}" for each in found.tolerances]
    heads += [f"below {found.call_at} at {each:g}" for each in found.tolerances]
    heads += [f"margin at {each:g}" for each in found.tolerances]
    heads += ["proxy's correlation"]
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for stage in found.stages:
        known = [stage.mean_return, stage.criticality[-1], *stage.affordable, *stage.critical]
        cells = [stage.name, *map(_cell, known), *map(number, stage.granted)]
        cells.append(_cell(stage.proxy_quality))
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f'<div class="scrolls"><table>{"".join(lines)}</table></div>'


def _cell(known: Known) -> str:
    return f"{number(known.mean)} ({number(known.low)} to {number(known.high)})"
