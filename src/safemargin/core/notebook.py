"""Tables as HTML, for the cells of a notebook, readable on light and dark pages."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_CELL = "padding:2px 9px;text-align:right;border:0"


def table_html(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    shades: Sequence[Sequence[float]] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return a table; `shades` from 0 to 1, one for each cell after the first, colour the cells."""
    head = "".join(f'<th style="{_CELL}">{html.escape(str(one))}</th>' for one in columns)
    body = []
    for at, row in enumerate(rows):
        cells = [f'<th style="{_CELL};font-weight:normal">{_text(row[0])}</th>']
        for column, value in enumerate(row[1:]):
            style = _CELL
            if shades is not None:
                style += f";background:rgba(64,145,108,{0.08 + 0.55 * shades[at][column]:.2f})"
            cells.append(f'<td style="{style}">{_text(value)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    below = "".join(f'<div style="opacity:.75">{html.escape(note)}</div>' for note in notes)
    return (
        f'<div style="font-variant-numeric:tabular-nums"><strong>{html.escape(title)}</strong>'
        '<table style="border-collapse:collapse;color:inherit;font-size:inherit;margin:4px 0">'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>{below}</div>"
    )


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return html.escape(str(value))
