"""The commands that show what happened: report, explore, highlights."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.errors import InvalidInput


@options.app.command(group=options.LOOK)
@options.on_ctrl_c("stopped; no report was written")
def report(
    study: options.StudyFolder,
    /,
    *,
    output: options.Output = Path("report.html"),
    top: Annotated[int, Parameter(metavar="K")] = 10,
    trust: options.Trust = False,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Write what a study found as one self-contained, interactive HTML file.

    The file needs no network: mail it to a colleague.

    For example:

        safemargin report runs/pong -o report.html

    Args:
        output: the file to write; an older one is replaced
        top: how many of the most critical moments to show
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.web.report import write_report

    options.note_new_parents(output)
    with sm.Study.open(study, trust=trust, **vars(about)) as opened, ProgressBar() as progress:
        written = write_report(opened, output, top=top, progress=progress)
    found = {"report": str(written.path), "notes": list(written.notes)}
    options.print_written(found, [written.path], as_json=as_json)


@options.app.command(group=options.LOOK)
@options.on_ctrl_c("stopped")
def explore(
    study: options.StudyFolder,
    /,
    *,
    episode: Annotated[str | None, Parameter(metavar="E")] = None,
    seed: Annotated[int | None, Parameter(metavar="S")] = None,
    step: Annotated[int | None, Parameter(metavar="T")] = None,
    port: int = 8717,
    host: str = "127.0.0.1",
    no_token: bool = False,
    no_browser: bool = False,
    trust: options.Trust = False,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Look at a study's episodes, step by step, on a local web page.

    Opens at the most critical moment: the one that loses most of those measured, or else the step
    with the highest proxy. Ctrl-C ends it.

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
        host: the default is reachable from this machine only
        no_token: whoever uses this machine may open the page; its address needs no token
        no_browser: only print the page's address
    """
    if episode is not None and seed is not None:
        raise InvalidInput("--episode and --seed exclude each other; leave one of them out")
    if seed is not None and seed < 0:
        raise InvalidInput(f"a seed is 0 or more, got {seed}")
    if step is not None and episode is None and seed is None:
        raise InvalidInput("--step needs the episode it is a step of: --episode or --seed")
    from safemargin.replay.recordings import Recordings
    from safemargin.web.access import Access, check_host, new_token
    from safemargin.web.entrance import hosts_of
    from safemargin.web.explorer import create_app
    from safemargin.web.server import listen

    check_host(host, no_token=no_token)
    access = Access("", None if no_token else new_token())
    with sm.Study.open(study, trust=trust, **vars(about)) as opened, listen(host, port) as bound:
        opened.require_trust()
        recordings = Recordings(opened)
        name = None
        if seed is not None:
            print(f"running an episode from seed {seed} …", file=sys.stderr)
            name = recordings.run_seed(seed)
        elif episode is not None:
            name = recordings.find(episode)
        page = create_app(
            opened,
            recordings=recordings,
            episode=name,
            step=step,
            hosts=hosts_of(host),
            access=access,
        )
        options.serve_page(
            *(page, bound, "the explorer"),
            browser=not no_browser,
            as_json=as_json,
            access=access,
            ending=page.state.stop,
        )
        if not page.state.ended:
            # A library is in the midst of something in the background that cannot be interrupted
            # and would be torn apart with the interpreter; nothing of it is to be kept.
            for output in (sys.stdout, sys.stderr):
                output.flush()
            os._exit(options.OK)


@options.app.command(group=options.LOOK)
@options.on_ctrl_c("stopped; the clips that were finished are kept")
def highlights(
    study: options.StudyFolder,
    /,
    *,
    output: options.Output = Path("clips"),
    top: Annotated[int, Parameter(metavar="K")] = 10,
    tolerance: float | None = None,
    confidence: float | None = None,
    apart: int = 60,
    trust: options.Trust = False,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Write short videos around the most critical moments, and a contact sheet.

    First those that lose most, where that was measured; then those with the lowest margins.

    For example:

        safemargin highlights runs/pong --top 10 -o clips/ --tolerance 0.5

    Args:
        output: the folder to write to
        top: how many moments to show
        tolerance: tolerance of the margins (default: one at which they differ)
        confidence: confidence of the margins (default: the highest up to 0.95 that the study's
            natural moments suffice for)
        apart: the minimum number of steps between two moments of one episode
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.replay.highlights import write_highlights

    options.note_new_parents(output)
    with sm.Study.open(study, trust=trust, **vars(about)) as opened, ProgressBar() as progress:
        written = write_highlights(
            opened,
            output,
            top=top,
            tolerance=tolerance,
            confidence=confidence,
            apart=apart,
            progress=progress,
        )
    found = {
        "clips": [str(path) for path in written.clips],
        "contact_sheet": str(written.contact_sheet),
        "moments": [highlight.to_dict() for highlight in written.moments],
        "notes": list(written.notes),
    }
    options.print_written(found, [*written.clips, written.contact_sheet], as_json=as_json)
