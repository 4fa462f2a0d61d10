"""The commands that show what happened: report, explore, highlights."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from safemargin.cli.base import INTERRUPTED, OK, AddCommand, add_study, print_json
from safemargin.errors import InvalidInput


def add_page_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    report = command(
        "report",
        run_report,
        "write what a study found as one self-contained, interactive HTML file",
        "The file needs no network: mail it to a colleague.\n\n"
        "example:\n  safemargin report runs/pong -o report.html",
    )
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        help="the file (default report.html; an older one is replaced)",
    )
    report.add_argument(
        "--top",
        type=int,
        default=10,
        metavar="K",
        help="how many of the most critical moments to show (default 10)",
    )

    explore = command(
        "explore",
        run_explore,
        "look at a study's episodes, step by step, on a local web page",
        "Opens at the most critical step of all, within the range of measured proxies; where the\n"
        "environment has lives, at that of a life that was lost. Ctrl-C ends it.\n\n"
        "examples:\n  safemargin explore runs/pong\n"
        "  safemargin explore runs/pong --episode 17 --step 812\n"
        '  safemargin explore runs/pong --episode "spread 3"\n'
        "  safemargin explore runs/pong --seed 3    # a fresh episode, with the study's margins",
    )
    which = explore.add_mutually_exclusive_group()
    which.add_argument(
        "--episode",
        metavar="E",
        help="the one to begin with: 17, 'spread 3' or 'natural 17, life 2'",
    )
    which.add_argument(
        "--seed", type=int, metavar="S", help="run an episode from this seed and begin with it"
    )
    explore.add_argument(
        "--step", type=int, metavar="T", help="the step to begin with, of that episode"
    )
    explore.add_argument("--port", type=int, help="default 8717; 0 takes any free one")
    explore.add_argument(
        "--host",
        default="127.0.0.1",
        help="default 127.0.0.1, this machine only; nobody is asked for a password",
    )
    explore.add_argument("--no-browser", action="store_true", help="only print the page's address")

    highlights = command(
        "highlights",
        run_highlights,
        "write short videos around the moments of lowest margin, and a contact sheet",
        "example:\n  safemargin highlights runs/pong --top 10 -o clips/ --tolerance 0.5",
    )
    highlights.add_argument(
        "-o", "--output", type=Path, default=Path("clips"), help="the folder (default clips)"
    )
    highlights.add_argument("--top", type=int, default=10, metavar="K", help="default 10")
    highlights.add_argument(
        "--tolerance", type=float, help="of the margins (default: one at which they differ)"
    )
    highlights.add_argument(
        "--confidence", type=float, default=0.95, help="of the margins (default 0.95)"
    )
    highlights.add_argument(
        "--apart", type=int, default=60, help="steps between two of one episode (default 60)"
    )
    for parser in (report, explore, highlights):
        add_study(parser)
        parser.add_argument(
            "--trust",
            action="store_true",
            help="run the code that a study of somebody else names: its environment, its policy",
        )


def run_report(options: argparse.Namespace) -> int:
    try:
        from safemargin.cli.console import ProgressBar
        from safemargin.study.study import Study
        from safemargin.web.report import write_report

        with Study.open(options.study, trust=options.trust) as study, ProgressBar() as progress:
            written = write_report(study, options.output, top=options.top, progress=progress)
    except KeyboardInterrupt:
        return _stopped("no report was written")
    _tell(options, {"report": str(written.path), "notes": list(written.notes)}, written.notes)
    return OK


def run_explore(options: argparse.Namespace) -> int:
    if options.seed is not None and options.seed < 0:
        raise InvalidInput(f"a seed is 0 or more, got {options.seed}")
    if options.step is not None and options.episode is None and options.seed is None:
        raise InvalidInput("--step needs the episode it is a step of: --episode or --seed")
    try:
        return _explore(options)
    except KeyboardInterrupt:  # before there was a page
        return _stopped()


def _explore(options: argparse.Namespace) -> int:
    from safemargin.replay.recordings import Recordings
    from safemargin.study.study import Study
    from safemargin.web.entrance import HOSTS
    from safemargin.web.explorer import create_app
    from safemargin.web.server import DEFAULT_PORT, listen, serve

    port = DEFAULT_PORT if options.port is None else options.port
    with (
        Study.open(options.study, trust=options.trust) as study,
        listen(options.host, port) as bound,
    ):
        study.require_trust()
        recordings = Recordings(study)
        name = None
        if options.seed is not None:
            print(f"running an episode from seed {options.seed} …", file=sys.stderr)
            name = recordings.run_seed(options.seed)
        elif options.episode is not None:
            name = recordings.find(options.episode)
        hosts = HOSTS if options.host in HOSTS else ("*",)
        app = create_app(study, recordings=recordings, episode=name, step=options.step, hosts=hosts)

        def started(address: str) -> None:
            if options.json:
                print(json.dumps({"address": address}), flush=True)
            else:
                print(f"the explorer is at {address}  (Ctrl-C ends it)", flush=True)

        try:
            serve(
                app,
                bound,
                browser=not options.no_browser,
                started=started,
                ending=app.state.stop,
            )
        except KeyboardInterrupt:
            print(file=sys.stderr)
        if not app.state.ended:
            # A library is in the midst of something in the background that cannot be interrupted
            # and would be torn apart with the interpreter; nothing of it is to be kept.
            for output in (sys.stdout, sys.stderr):
                output.flush()
            os._exit(OK)
    return OK


def run_highlights(options: argparse.Namespace) -> int:
    try:
        from safemargin.cli.console import ProgressBar
        from safemargin.replay.highlights import write_highlights
        from safemargin.study.study import Study

        with Study.open(options.study, trust=options.trust) as study, ProgressBar() as progress:
            written = write_highlights(
                study,
                options.output,
                top=options.top,
                tolerance=options.tolerance,
                confidence=options.confidence,
                apart=options.apart,
                progress=progress,
            )
    except KeyboardInterrupt:
        return _stopped("the clips that were finished are kept")
    found: dict[str, Any] = {
        "clips": [str(path) for path in written.clips],
        "contact_sheet": str(written.contact_sheet),
        "moments": [highlight.to_dict() for highlight in written.moments],
        "notes": list(written.notes),
    }
    _tell(options, found, written.notes)
    return OK


def _stopped(what: str = "") -> int:
    print("\nstopped" + (f"; {what}" if what else ""), file=sys.stderr)
    return INTERRUPTED


def _tell(options: argparse.Namespace, found: dict[str, Any], notes: tuple[str, ...]) -> None:
    """What was written, as JSON or as one path a line; notes on standard error."""
    if options.json:
        print_json(found)
        return
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    for value in found.values():
        if isinstance(value, str):
            print(value)
        elif value and isinstance(value[0], str) and value is not found["notes"]:
            print("\n".join(value))
