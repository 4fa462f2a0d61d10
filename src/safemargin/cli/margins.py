"""The commands of margins: fit, margin, validate, compare, plot, export."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from safemargin.cli.base import (
    OK,
    AddCommand,
    add_estimand,
    add_fit_options,
    add_study,
    numbers,
    print_json,
    warn_if_unfinished,
)
from safemargin.errors import InvalidInput


def add_margin_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    fit = command(
        "fit",
        run_fit,
        "fit safety margins to a study",
        "example:\n  safemargin fit runs/pong -o margins.json --confidence 0.95 --tolerance 0.5,1",
    )
    validate = command(
        "validate", run_validate, "check on held-out moments whether the margins hold"
    )
    plot = command("plot", run_plot, "draw densities, margins and proxies of a study")
    export = command(
        "export",
        run_export,
        "write a study's tuples, or the steps of its episodes, as a table",
        "The table of tuples is the view `tuples` of STUDY/study.db, too:\n"
        "  sqlite3 STUDY/study.db 'SELECT * FROM tuples LIMIT 5'\n\n"
        "examples:\n  safemargin export runs/pong -o tuples.parquet\n"
        "  safemargin export runs/pong --steps -o steps.csv",
    )
    compare = command(
        "compare",
        run_compare,
        "compare all methods and proxies of a study, and name the best",
        "Cross-validation on natural moments; the winner grants the largest mean margin among\n"
        "those that are not shown to break their promise.\n\n"
        "example:\n  safemargin compare runs/pong --tolerance 0.5",
    )
    for parser_of_study in (fit, validate, plot, export, compare):
        add_study(parser_of_study)
    for parser_of_fit in (fit, validate, plot):
        add_fit_options(parser_of_fit)
    compare.add_argument("--confidence", type=float, default=0.95, help="β (default 0.95)")
    compare.add_argument("--proxy", nargs="+", metavar="NAME", help="default: all of the study")
    for parser_of_loss in (fit, validate, plot, compare):
        add_estimand(parser_of_loss)
    for parser_of_tolerances in (validate, compare):
        parser_of_tolerances.add_argument(
            "--tolerance", type=numbers, metavar="Z,Z,…", help="losses you accept, in reward units"
        )
    fit.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("margins.json"),
        help="the file (default margins.json; an older one is replaced)",
    )
    fit.add_argument(
        "--tolerance", type=numbers, metavar="Z,Z,…", help="rows of the table (reward units)"
    )
    plot.add_argument(
        "-o", "--output", type=Path, default=Path("figures"), help="the folder (default figures)"
    )
    plot.add_argument("--format", choices=["png", "svg", "pdf"], default="png")
    export.add_argument(
        "-o", "--output", type=Path, required=True, help="the file, .csv or .parquet"
    )
    export.add_argument(
        "--steps",
        action="store_true",
        help="reward and proxies at every step of the natural episodes, instead of the tuples",
    )
    export.add_argument(
        "--episodes",
        type=int,
        metavar="K",
        help="with --steps: of the first K natural episodes only (each life of a game is one)",
    )

    margin = command(
        "margin",
        run_margin,
        "look up one safety margin",
        "example:\n  safemargin margin margins.json --proxy 3.2 --tolerance 0.5",
    )
    margin.add_argument("margins", type=Path, metavar="MARGINS", help="what `fit` wrote")
    # Numbers such as -8e-05 are values, not options; argparse of older Pythons does not know.
    margin._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?(,.*)?$")
    margin.add_argument(
        "--proxy",
        type=numbers,
        required=True,
        metavar="P",
        help="the proxy's value now; with commas, one for each n, where the proxy looks at n",
    )
    margin.add_argument(
        "--tolerance", type=float, required=True, help="the loss you accept, in reward units"
    )
    margin.add_argument(
        "--above",
        choices=["zero", "nearest", "error"],
        default="zero",
        help="what to do above the highest measured proxy (default: margin 0)",
    )


def run_fit(options: argparse.Namespace) -> int:
    from safemargin.cli.console import print_margins, warnings_as_notes
    from safemargin.study.study import Study

    with Study.open(options.study) as study, warnings_as_notes():
        margins = study.fit(
            options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
        )
        warn_if_unfinished(study)
        margins.save(options.output)
    for note in () if margins.bound.unbounded else margins.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.json:
        print_json({"margins": str(options.output), **margins.to_dict()})
    else:
        print_margins(margins, options.tolerance)
        print(f"\nwrote {options.output}")
    return OK


def run_margin(options: argparse.Namespace) -> int:
    from safemargin.margins.lookup import Margins

    margins = Margins.load(options.margins)
    proxy = options.proxy if margins.bound.looks_at_n else options.proxy[0]
    if not margins.bound.looks_at_n and len(options.proxy) > 1:
        raise InvalidInput(f"the proxy {margins.proxy!r} has one value, got {options.proxy}")
    found = margins.lookup(proxy, options.tolerance, above=options.above)
    if options.json:
        print_json(
            {
                "margin": found.margin,
                "outside": found.outside,
                "below": found.below,
                "proxy": proxy,
                "proxy_name": margins.proxy,
                "tolerance": options.tolerance,
                "confidence": margins.confidence,
                "method": margins.method,
                "estimand": margins.estimand,
            }
        )
        return OK
    print(found.margin)
    if found.outside:
        treated = "the last bin was used"
        if options.above == "zero":
            treated = "no margin is granted" + " from that n on" * margins.bound.looks_at_n
        print(
            f"note: {margins.proxy} {max(options.proxy):g} lies above {margins.highest_proxy:g}, "
            f"the highest these margins were fitted on; {treated}",
            file=sys.stderr,
        )
    return OK


# -- validate ----------------------------------------------------------------------------------


def run_validate(options: argparse.Namespace) -> int:
    from safemargin.cli.show_validation import print_validation
    from safemargin.study.study import Study

    with Study.open(options.study) as study:
        validation = study.validate(
            options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
            tolerances=_tolerances(options),
        )
        warn_if_unfinished(study)
    if options.json:
        print_json(validation.to_dict())
    else:
        print_validation(validation)
    return OK


# -- compare -----------------------------------------------------------------------------------


def run_compare(options: argparse.Namespace) -> int:
    from safemargin.cli.console import ProgressBar
    from safemargin.cli.show_validation import print_comparison
    from safemargin.study.study import Study

    with Study.open(options.study) as study, ProgressBar() as bar:
        comparison = study.compare(
            options.confidence,
            tolerances=_tolerances(options),
            proxies=options.proxy,
            estimand=options.estimand,
            progress=bar,
        )
        warn_if_unfinished(study)
    if options.json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison)
    return OK


# -- plot, export ------------------------------------------------------------------------------


def run_plot(options: argparse.Namespace) -> int:
    from safemargin.cli.console import warnings_as_notes
    from safemargin.study.study import Study

    with Study.open(options.study) as study, warnings_as_notes():
        written = study.plot(
            options.output,
            confidence=options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
            picture_format=options.format,
        )
        warn_if_unfinished(study)
    if options.json:
        print_json({"figures": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
    return OK


def run_export(options: argparse.Namespace) -> int:
    from safemargin.study.study import Study

    with Study.open(options.study) as study:
        written = study.export(options.output, steps=options.steps, episodes=options.episodes)
    if options.json:
        print_json({"table": str(written)})
    else:
        print(written)
    return OK


# -- what these share --------------------------------------------------------------------------


def _tolerances(options: argparse.Namespace) -> list[float] | None:
    given: list[float] | None = options.tolerance
    if given is not None and not all(tolerance >= 0 for tolerance in given):
        raise InvalidInput(f"the tolerance must be at least 0, got {min(given):g}")
    return given
