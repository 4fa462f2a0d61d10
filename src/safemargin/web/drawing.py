"""Charts as SVG text, for pages that need no script: lines with bands, bars, and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44


@dataclass(frozen=True)
class Line:
    """A curve, with the band it may lie in."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = "var(--accent)"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dots: bool = False


@dataclass(frozen=True)
class Axes:
    """The ranges of a chart, and what its axes are called."""

    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[tuple[float, str]] | None = None

    def across(self, value: float) -> float:
        low, high = self.x
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def up(self, value: float) -> float:
        low, high = self.y
        share = (min(max(value, low), high) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def line_chart(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_ticks: Sequence[tuple[float, str]] | None = None,
    y_from_zero: bool = False,
) -> str:
    """Return a chart of curves; bands are drawn behind them."""
    known = [
        value for line in lines for part in (line.y, line.low, line.high) for value in part or ()
    ]
    finite = [value for value in known if math.isfinite(value)] + [0.0] * y_from_zero
    axes = Axes(
        x_label,
        y_label,
        _range([value for line in lines for value in line.x]),
        _range(finite, padded=True),
        x_ticks,
    )
    parts = [_frame(axes)]
    for line in lines:
        if line.low is not None and line.high is not None:
            there = list(zip(line.x, line.high, strict=True))
            back = list(zip(line.x, line.low, strict=True))[::-1]
            parts.append(
                f'<polygon points="{_points(axes, there + back)}" fill="{line.color}" '
                'opacity="0.16"/>'
            )
    for line in lines:
        points = list(zip(line.x, line.y, strict=True))
        parts.append(
            f'<polyline points="{_points(axes, points)}" fill="none" stroke="{line.color}" '
            'stroke-width="2" stroke-linejoin="round"/>'
        )
        if line.dots:
            parts += [
                f'<circle cx="{axes.across(x):.1f}" cy="{axes.up(y):.1f}" r="3.2" '
                f'fill="{line.color}"><title>{escape(line.name)}: {y:.4g}</title></circle>'
                for x, y in points
                if math.isfinite(y)
            ]
    return _svg(parts, f"{y_label} over {x_label}") + legend(lines)


def bar_chart(names: Sequence[str], bars: Sequence[Line], x_label: str, y_label: str) -> str:
    """Return bars side by side for each name; the y of each `Line` are its heights."""
    highest = max((value for bar in bars for value in bar.y), default=1.0) or 1.0
    ticks = [(index + 0.5, name) for index, name in enumerate(names)]
    axes = Axes(x_label, y_label, (0, len(names)), (0, highest * 1.08), ticks)
    parts = [_frame(axes)]
    thick = 0.8 / len(bars)
    for which, bar in enumerate(bars):
        for index, value in enumerate(bar.y):
            left = axes.across(index + 0.1 + which * thick)
            right = axes.across(index + 0.1 + (which + 1) * thick)
            top, bottom = axes.up(value), axes.up(0)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left - 1:.1f}" '
                f'height="{bottom - top:.1f}" fill="{bar.color}" rx="2">'
                f"<title>{escape(bar.name)}, {escape(names[index])}: {value:.3g}</title></rect>"
            )
    return _svg(parts, f"{y_label} for each {x_label}") + legend(bars)


@dataclass(frozen=True)
class Interval:
    """A line of a chart of intervals."""

    name: str
    low: float
    middle: float
    high: float
    color: str


def interval_chart(rows: Sequence[Interval], *, reach: float, left: str, right: str) -> str:
    """Return intervals on one axis from −reach to reach, with marks at −1, 0 and 1."""
    row, label, width = 30, 330, 1040
    height = row * len(rows) + 44
    plot = width - label - 20

    def across(value: float) -> float:
        return label + (max(-reach, min(reach, value)) + reach) / (2 * reach) * plot

    parts = [
        f'<rect x="{across(-1):.1f}" y="22" width="{across(1) - across(-1):.1f}" '
        f'height="{height - 44}" fill="var(--soft)"/>',
        f'<text x="{across(-reach):.1f}" y="14">{escape(left)}</text>',
        f'<text x="{across(reach):.1f}" y="14" text-anchor="end">{escape(right)}</text>',
    ]
    for mark, text in ((-1, "as much as matters"), (0, "0"), (1, "as much as matters")):
        x = across(mark)
        dashes = "" if mark == 0 else ' stroke-dasharray="3 3"'
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{height - 22}" stroke="var(--edge)"'
            f'{dashes}/><text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{text}</text>'
        )
    for index, each in enumerate(rows):
        y = 22 + row * index + row / 2
        low, high = across(each.low), across(each.high)
        parts.append(
            f'<text x="{label - 12}" y="{y + 4:.1f}" text-anchor="end" class="name">'
            f"{escape(each.name)}</text>"
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{each.color}" stroke-width="3" stroke-linecap="round"/>'
            f'<circle cx="{across(each.middle):.1f}" cy="{y:.1f}" r="5" fill="{each.color}"/>'
        )
    return _svg(parts, "changes with their intervals", size=(width, height))


def legend(lines: Sequence[Line]) -> str:
    """Return names beside their colours; nothing for one line."""
    if len(lines) < 2:
        return ""
    keys = "".join(
        f'<span class="key"><i style="background:{line.color}"></i>{escape(line.name)}</span>'
        for line in lines
    )
    return f'<p class="keys">{keys}</p>'


def _points(axes: Axes, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{axes.across(x):.1f},{axes.up(y):.1f}" for x, y in points if math.isfinite(y))


def _frame(axes: Axes) -> str:
    """Return grid, ticks and labels."""
    parts = []
    for value, text in _ticks(*axes.y):
        y = axes.up(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="var(--line)"/><text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">'
            f"{text}</text>"
        )
    ticks = _ticks(*axes.x) if axes.x_ticks is None else axes.x_ticks
    for value, text in ticks:
        x = axes.across(value)
        # A long name at the right end would be cut off.
        anchor = "end" if x > WIDTH - RIGHT - 1 and len(text) > 4 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle" class="name">'
        f"{escape(axes.x_label)}</text>"
        f'<text transform="translate(13 {(HEIGHT - BOTTOM + TOP) / 2:.1f}) rotate(-90)" '
        f'text-anchor="middle" class="name">{escape(axes.y_label)}</text>'
    )
    return "".join(parts)


def _svg(parts: Sequence[str], label: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _range(values: Sequence[float], *, padded: bool = False) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    extra = 0.05 * (high - low) * padded
    return low - extra * (low != 0), high + extra


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about five round numbers within a range, and how they are written."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(size for size in (1, 2, 5, 10) if (high - low) / (step * size) <= 5)
    first = math.ceil(low / step - 1e-9)
    found = []
    for index in range(first, math.floor(high / step + 1e-9) + 1):
        found.append((index * step, f"{index * step:.6g}".replace("-", "−")))
    return found
