"""What a gate found as one self-contained page: the old checkpoint beside the new one."""

from __future__ import annotations

from html import escape

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.core.text import readable
from safemargin.core.version import __version__
from safemargin.policies.proxies import single_values
from safemargin.validation.baseline import Baseline
from safemargin.validation.gate import GateResult
from safemargin.validation.gate_files import (
    interval,
    matters_text,
    more_text,
    number,
    towards_better,
)
from safemargin.validation.verdicts import Check
from safemargin.web.drawing import Interval, Line, bar_chart, interval_chart, line_chart
from safemargin.web.pages import page

OLD, NEW = "var(--unknown)", "var(--accent)"
CLASSES = {
    "better": "good",
    "no difference": "good",
    "no worse": "good",
    "passed": "good",
    "worse": "bad",
    "cannot tell": "open",
    None: "info",
}
COLORS = {"good": "var(--reward)", "bad": "var(--low)", "open": "var(--middle)"}
REACH = 4.0


def gate_page(result: GateResult, old: Baseline, new: Baseline) -> str:
    """Return the page with all styles, numbers and pictures inside; it needs no script."""
    paired = "paired by their starts" if result.paired else "not paired: other starts"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in result.notes)
    sections = [
        f'<section id="verdict"><p>{_badge(result.verdict)} &ensp;{escape(result.sentence)}.</p>'
        f'<p class="quiet small">{result.new_moments} natural moments beside '
        f"{result.old_moments}, {paired}. All checks share an error rate of "
        f"{100 * result.error_rate:g} %.</p>{notes}</section>",
        "<section><h2>What changed</h2><p class='quiet'>Each change with its interval, in units of "
        "what matters to its check; to the right is better. Left of the band is a deterioration "
        f"that matters.</p>{_intervals(result)}{_table(result)}</section>",
        f"<section><h2>Old beside new</h2>{_charts(result, old, new)}</section>",
        f"<section><h2>What was compared</h2>{_facts(result, old, new)}</section>",
    ]
    return html_page(
        f"{result.environment}: {result.verdict}",
        "Is the new checkpoint worse than the old one?",
        f"{result.new} beside {result.old}, in {result.environment}",
        sections,
    )


def html_page(title: str, heading: str, subtitle: str, sections: list[str]) -> str:
    """Return a page in the style of reports, without scripts."""
    style = "".join(page(f"{name}.css") for name in ("style", "report", "gate"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f'<body class="report">\n<header><h1>{escape(heading)}</h1>'
        f'<p class="quiet">{escape(subtitle)}</p></header>\n'
        + "\n".join(sections)
        + f'\n<p class="quiet small">Made by safemargin {__version__}.</p>\n</body>\n</html>\n'
    )


def _badge(verdict: str | None) -> str:
    text = verdict or "for information"
    return f'<span class="outcome {CLASSES[verdict]}">{escape(text)}</span>'


def _intervals(result: GateResult) -> str:
    rows = []
    for check in result.checks:
        if check.matters is None:
            continue
        unit = check.matters or max(abs(check.low), abs(check.high)) / REACH or 1.0
        low, change, high = (value / unit for value in towards_better(check))
        rows.append(Interval(check.name, low, change, high, COLORS[CLASSES[check.verdict]]))
    return interval_chart(rows, reach=REACH, left="◀ worse", right="better ▶") if rows else ""


def _table(result: GateResult) -> str:
    heads = (
        *("check", "old", "new", "change", "interval", "matters", "verdict", "power"),
        "more moments",
    )
    cells = "".join(f"<th>{head}</th>" for head in heads)
    return (
        f'<div class="scrolls"><table class="checks"><tr>{cells}</tr>'
        + "".join(map(_row, result.checks))
        + "</table></div><p class='quiet small'>Power: the chance that this many moments show a "
        "deterioration as large as what matters.</p>"
    )


def _row(check: Check) -> str:
    texts = [number(each) for each in (check.old, check.new, check.change)]
    texts += [interval(check), matters_text(check)]
    numbers = "".join(f"<td>{escape(text)}</td>" for text in texts)
    power = "–" if check.power is None else f"{check.power:.2f}"
    return (
        f"<tr><td>{escape(check.name)} <span class='quiet small'>{escape(check.unit)}</span></td>"
        f"{numbers}<td>{_badge(check.verdict)}</td><td>{power}</td><td>{escape(more_text(check))}</td></tr>"
    )


def _charts(result: GateResult, old: Baseline, new: Baseline) -> str:
    tolerance, about = result.tolerances[0], Settings.from_mapping(old.settings).measured
    names = ["0", *map(str, old.n_values)]
    bars = [
        Line(name, [], _shares(each, tolerance), color)
        for name, each, color in (("old", old, OLD), ("new", new, NEW))
    ]
    proxy = readable(new.proxy) if new.proxy == old.proxy else "proxy"
    charts = [
        (
            f"How many {about.mistakes} natural moments afford at tolerance {tolerance:g}",
            bar_chart(names, bars, "affordable actions", "share of moments"),
        ),
        (
            f"Loss after up to {old.n_values[-1]} {about.mistakes}",
            _distributions(_worst(old), _worst(new), about.loss),
        ),
        ("Return of a game", _distributions(old.returns, new.returns, "sum of rewards")),
        (
            "Proxy at natural moments",
            _distributions(_proxies(old), _proxies(new), proxy),
        ),
    ]
    whole = "".join(f"<div><h3>{escape(title)}</h3>{chart}</div>" for title, chart in charts)
    return f'<div class="charts">{whole}</div>'


def _worst(each: Baseline) -> Floats:
    return np.asarray(each.losses[each.natural].max(axis=1))


def _proxies(each: Baseline) -> Floats:
    return single_values(each.proxies[each.natural])


def _shares(each: Baseline, tolerance: float) -> list[float]:
    """Return the share of natural moments that afford 0, and each n, [1 + n]."""
    largest = np.maximum.accumulate(each.losses[each.natural], axis=1)
    granted = (largest <= tolerance).sum(axis=1)
    counts = np.bincount(granted, minlength=len(each.n_values) + 1)
    return [float(share) for share in counts / len(granted)]


def _distributions(old: Floats, new: Floats, label: str) -> str:
    """Return a chart of both distributions: the share of values up to each value."""
    ends = float(min(old.min(), new.min())), float(max(old.max(), new.max()))
    lines = []
    for name, values, color in (("old", old, OLD), ("new", new, NEW)):
        ordered = np.sort(values)
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        x = [ends[0], *np.repeat(ordered, 2).tolist(), ends[1]]
        y = [0.0, *np.stack([np.r_[0.0, shares[:-1]], shares], axis=1).ravel().tolist(), 1.0]
        lines.append(Line(name, x, y, color))
    return line_chart(lines, label, "share up to this value")


def _facts(result: GateResult, old: Baseline, new: Baseline) -> str:
    settings = ("gamma", "n_values", "opening", "action_choice", "trial_plan")
    rows = [
        ("", "old", "new"),
        ("policy", str(old.policy["description"]), str(new.policy["description"])),
        ("policy hash", str(old.policy["identity"]), str(new.policy["identity"])),
        ("from", old.source, new.source),
        ("seed", str(old.seed), str(new.seed)),
        ("natural moments", str(int(old.natural.sum())), str(int(new.natural.sum()))),
        ("spread moments", str(int((~old.natural).sum())), str(int((~new.natural).sum()))),
        ("natural games", str(len(old.returns)), str(len(new.returns))),
        ("proxy", old.proxy, new.proxy),
        *((name, str(old.settings[name]), str(new.settings[name])) for name in settings),
        ("confidence β", f"{result.confidence:g}", f"{result.confidence:g}"),
    ]
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scrolls"><table id="facts">{lines}</table></div>'
