"""What a gate writes for continuous integration: JUnit XML and a Markdown summary.

The summary's picture is drawn in text, in a code block: GitHub's job summaries show neither SVG in
the text nor images in data: addresses, and text needs nothing beside it.
"""

from __future__ import annotations

import math
from xml.etree import ElementTree

from safemargin.validation.gate import GateResult
from safemargin.validation.verdicts import Check

MARKS = {
    "better": "✅ better",
    "no difference": "✅ no difference",
    "no worse": "✅ no worse",
    "worse": "❌ worse",
    "cannot tell": "❓ cannot tell",
    None: "– for information",
}
HALF = 20
"""Characters from 0 to either end of a line of the picture."""
REACH = 4.0
"""A line of the picture reaches this many times what matters to either side."""


def number(value: float) -> str:
    """Write a number with three or four digits that count."""
    return "∞" if math.isinf(value) and value > 0 else f"{value:.4g}".replace("-", "−")


def interval(check: Check) -> str:
    """Write the interval of a change."""
    if not math.isfinite(check.low):
        return "unknown"
    return f"{number(check.low)} to {number(check.high)}"


def matters_text(check: Check) -> str:
    """Write what matters, and whether somebody said so."""
    if check.matters is None:
        return "–"
    return number(check.matters) + ("" if check.said else " (default)")


def more_text(check: Check) -> str:
    """Write what more moments would show."""
    if check.verdict is None:
        return f"--matters {check.kind}=… judges it"
    if check.verdict != "cannot tell":
        return check.note
    if check.needed is None:
        return check.note or "no number of moments would decide"
    needed = f"{check.needed:,} natural moments of each would decide"
    return f"{check.note}; {needed}" if check.note else needed


def towards_better(check: Check) -> tuple[float, float, float]:
    """Return low, change and high so that better is above 0; of a drift, as they are."""
    if check.higher_is_better is False:
        return -check.high, -check.change, -check.low
    return check.low, check.change, check.high


def picture(result: GateResult) -> str:
    """Draw every judged interval on a line of text, in units of what matters; right is better."""
    judged = [check for check in result.checks if check.judged]
    if not judged:
        return ""
    width = max(len(check.name) for check in judged)
    scale = f"{'◀ worse':<{HALF}}0{'better ▶':>{HALF}}"
    return "\n".join(
        [
            f"{'':{width}}  {scale}",
            *(f"{check.name:{width}}  {_line(check)}" for check in judged),
            f"{'':{width}}  ┊: as much as matters",
        ]
    )


def _line(check: Check) -> str:
    """Draw one interval: ├──●──┤ between the marks of what matters."""
    low, change, high = towards_better(check)
    matters = check.matters or max(abs(low), abs(high), 1e-300) / REACH

    def column(value: float) -> int:
        share = max(-1.0, min(1.0, value / matters / REACH))
        return HALF + round(share * HALF)

    cells = ["·"] * (2 * HALF + 1)
    cells[HALF] = "│"
    for mark in (-matters, matters):
        cells[column(mark)] = "┊"
    first, last = column(low), column(high)
    for position in range(first, last + 1):
        cells[position] = "─"
    cells[first], cells[last] = "├", "┤"
    cells[column(change)] = "●"
    return "".join(cells)


def markdown(result: GateResult) -> str:
    """Return the summary for a job's page."""
    title = {"passed": "✅ passed", "worse": "❌ worse", "cannot tell": "❓ cannot tell yet"}
    how = "paired, on the same starts" if result.paired else "not paired: other starts"
    lines = [
        f"## safemargin gate: {title[result.verdict]}",
        "",
        f"**{_escaped(result.new)}** beside **{_escaped(result.old)}** in "
        f"{_escaped(result.environment)}. {_escaped(result.sentence.capitalize())}.",
        "",
        "```text",
        picture(result),
        "```",
        "",
        "| check | old | new | change, with interval | matters | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for check in result.checks:
        more = more_text(check)
        verdict = MARKS[check.verdict] + (f"; {more}" if more else "")
        cells = (
            check.name,
            number(check.old),
            number(check.new),
            f"{number(check.change)} ({interval(check)})",
            matters_text(check),
            verdict,
        )
        lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
    lines += [
        "",
        f"{result.new_moments} natural moments beside {result.old_moments}, {how}. All checks "
        f"share an error rate of {100 * result.error_rate:g} %.",
        *(f"- {_escaped(note)}" for note in result.notes),
        "",
    ]
    return "\n".join(lines)


def failed_markdown(reason: str) -> str:
    """Return the summary of a gate that could not compare."""
    return f"## safemargin gate: ⚠️ nothing was compared\n\n{_escaped(reason)}\n"


def junit(result: GateResult) -> str:
    """Return JUnit XML with one case a check: worse is a failure, cannot tell is skipped."""
    suite = _suite(len(result.checks))
    for check in result.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname="safemargin.gate", name=check.name, time="0"
        )
        text = (
            f"{check.verdict or 'for information'}: old {number(check.old)}, new "
            f"{number(check.new)}, change {number(check.change)} ({interval(check)})"
        )
        if check.verdict == "worse":
            ElementTree.SubElement(case, "failure", message=text, type="worse")
        elif check.verdict in ("cannot tell", None):
            ElementTree.SubElement(case, "skipped", message=f"{text}; {more_text(check)}")
        ElementTree.SubElement(case, "system-out").text = text
    failures, skipped = (sum(1 for _ in suite.iter(tag)) for tag in ("failure", "skipped"))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    return _xml(suite)


def failed_junit(reason: str) -> str:
    """Return JUnit XML of a gate that could not compare: one case, with an error."""
    suite = _suite(1)
    case = ElementTree.SubElement(
        suite, "testcase", classname="safemargin.gate", name="comparison", time="0"
    )
    ElementTree.SubElement(case, "error", message=reason, type="bad input")
    suite.set("errors", "1")
    return _xml(suite)


def _suite(tests: int) -> ElementTree.Element:
    counts = {"failures": "0", "errors": "0", "skipped": "0", "time": "0"}
    return ElementTree.Element(
        "testsuite", {"name": "safemargin gate", "tests": str(tests), **counts}
    )


def _xml(suite: ElementTree.Element) -> str:
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    text = ElementTree.tostring(whole, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _escaped(text: str) -> str:
    """Keep text from being read as Markdown or HTML."""
    for character, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(character, instead)
    return text
