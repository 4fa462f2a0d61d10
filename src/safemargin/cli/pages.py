"""The commands that show what happened: report, explore, highlights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from safemargin.cli.options import (
    INTERRUPTED,
    LOOK,
    OK,
    Json,
    Output,
    StudyFolder,
    app,
    print_json,
    print_note,
)
from safemargin.errors import InvalidInput

Trust = Annotated[
    bool,
    Parameter(help="run the code that somebody else's study names: its environment, its policy"),
]


@app.command(group=LOOK)
def report(
    study: StudyFolder,
    /,
    *,
    output: Output = Path("report.html"),
    top: Annotated[int, Parameter(metavar="K")] = 10,
    trust: Trust = False,
    as_json: Json = False,
) -> int:
    """Write what a study found as one self-contained, interactive HTML file.

    The file needs no network: mail it to a colleague.

    For example:

        safemargin report runs/pong -o report.html

    Args:
        output: the file to write; an older one is replaced
        top: how many of the most critical moments to show
    """
    try:
        from safemargin.cli.console import ProgressBar
        from safemargin.study.study import Study
        from safemargin.web.report import write_report

        with Study.open(study, trust=trust) as opened, ProgressBar() as progress:
            written = write_report(opened, output, top=top, progress=progress)
    except KeyboardInterrupt:
        return _stopped("no report was written")
    found = {"report": str(written.path), "notes": list(written.notes)}
    _show_written(found, [written.path], as_json=as_json)
    return OK


@app.command(group=LOOK)
def explore(
    study: StudyFolder,
    /,
    *,
    episode: Annotated[str | None, Parameter(metavar="E")] = None,
    seed: Annotated[int | None, Parameter(metavar="S")] = None,
    step: Annotated[int | None, Parameter(metavar="T")] = None,
    port: int = 8717,
    host: str = "127.0.0.1",
    no_browser: bool = False,
    trust: Trust = False,
    as_json: Json = False,
) -> int:
    """Look at a study's episodes, step by step, on a local web page.

    Opens at the most critical step of all within the range of measured proxies; if the
    environment has lives, at that of a life that was lost. Ctrl-C ends it.

    For example:

        safemargin explore runs/pong
        safemargin explore runs/pong --episode 17 --step 812
        safemargin explore runs/pong --episode "spread 3"
        safemargin explore runs/pong --seed 3    # a new episode, the study's margins

    Args:
        episode: start with this one: 17, 'spread 3' or natural-17-1
        seed: run an episode from this seed and start with it
        step: start at this step of that episode
        port: 0 picks any free port
        host: the default is reachable from this machine only; there is no password
        no_browser: only print the page's address
    """
    if episode is not None and seed is not None:
        raise InvalidInput("--episode and --seed exclude each other; leave one of them out")
    if seed is not None and seed < 0:
        raise InvalidInput(f"a seed is 0 or more, got {seed}")
    if step is not None and episode is None and seed is None:
        raise InvalidInput("--step needs the episode it is a step of: --episode or --seed")
    try:
        from safemargin.replay.recordings import Recordings
        from safemargin.study.study import Study
        from safemargin.web.entrance import HOSTS
        from safemargin.web.explorer import create_app
        from safemargin.web.server import listen

        with Study.open(study, trust=trust) as opened, listen(host, port) as bound:
            opened.require_trust()
            recordings = Recordings(opened)
            name = None
            if seed is not None:
                print(f"running an episode from seed {seed} …", file=sys.stderr)
                name = recordings.run_seed(seed)
            elif episode is not None:
                name = recordings.find(episode)
            hosts = HOSTS if host in HOSTS else ("*",)
            page = create_app(opened, recordings=recordings, episode=name, step=step, hosts=hosts)
            _serve(page, bound, browser=not no_browser, as_json=as_json)
    except KeyboardInterrupt:  # before there was a page
        return _stopped()
    return OK


def _serve(page: Any, bound: Any, *, browser: bool, as_json: bool) -> None:
    from safemargin.web.server import serve

    def started(address: str) -> None:
        if as_json:
            print(json.dumps({"address": address}), flush=True)
        else:
            print(f"the explorer is at {address}  (Ctrl-C ends it)", flush=True)

    try:
        serve(page, bound, browser=browser, started=started, ending=page.state.stop)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    if not page.state.ended:
        # A library is in the midst of something in the background that cannot be interrupted and
        # would be torn apart with the interpreter; nothing of it is to be kept.
        for output in (sys.stdout, sys.stderr):
            output.flush()
        os._exit(OK)


@app.command(group=LOOK)
def highlights(
    study: StudyFolder,
    /,
    *,
    output: Output = Path("clips"),
    top: Annotated[int, Parameter(metavar="K")] = 10,
    tolerance: float | None = None,
    confidence: float = 0.95,
    apart: int = 60,
    trust: Trust = False,
    as_json: Json = False,
) -> int:
    """Write short videos around the moments with the lowest margins, and a contact sheet.

    For example:

        safemargin highlights runs/pong --top 10 -o clips/ --tolerance 0.5

    Args:
        output: the folder to write to
        top: how many moments to show
        tolerance: tolerance of the margins (default: one at which they differ)
        confidence: confidence of the margins
        apart: the minimum number of steps between two moments of one episode
    """
    try:
        from safemargin.cli.console import ProgressBar
        from safemargin.replay.highlights import write_highlights
        from safemargin.study.study import Study

        with Study.open(study, trust=trust) as opened, ProgressBar() as progress:
            written = write_highlights(
                opened,
                output,
                top=top,
                tolerance=tolerance,
                confidence=confidence,
                apart=apart,
                progress=progress,
            )
    except KeyboardInterrupt:
        return _stopped("the clips that were finished are kept")
    found = {
        "clips": [str(path) for path in written.clips],
        "contact_sheet": str(written.contact_sheet),
        "moments": [highlight.to_dict() for highlight in written.moments],
        "notes": list(written.notes),
    }
    _show_written(found, [*written.clips, written.contact_sheet], as_json=as_json)
    return OK


def _stopped(what: str = "") -> int:
    print("\nstopped" + (f"; {what}" if what else ""), file=sys.stderr)
    return INTERRUPTED


def _show_written(found: dict[str, Any], paths: list[Path], *, as_json: bool) -> None:
    """Print what was written as JSON or as one path a line, with notes on standard error."""
    if as_json:
        print_json(found)
        return
    for note in found["notes"]:
        print_note(note)
    for path in paths:
        print(path)
