"""The commands for what comes with the package: zoo, demo, reproduce; and completion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.errors import InvalidInput


@options.app.command(group=options.BUNDLED)
def zoo(
    show: Annotated[Literal["show"] | None, Parameter(name="show", show_choices=False)] = None,
    agent: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    as_json: options.Json = False,
) -> None:
    """List the bundled agents, or show one of them.

    For example:

        safemargin zoo
        safemargin zoo show pong-a3c

    Args:
        show: show the card of one agent
        agent: its name, as `safemargin zoo` lists it
    """
    from safemargin.cli.show_zoo import print_agents, print_card, summary
    from safemargin.policies.zoo import zoo_agents, zoo_card

    if show is not None:
        if agent is None:
            raise InvalidInput("zoo show needs the NAME of an agent; `safemargin zoo` lists them")
        card = zoo_card(agent)
        if as_json:
            options.print_json(card)
        else:
            print_card(card)
    elif as_json:
        options.print_json({"agents": [summary(card) for card in zoo_agents()]})
    else:
        print_agents(zoo_agents())


@options.app.command(group=options.BUNDLED)
@options.on_ctrl_c(options.KEPT)
def demo(
    *,
    output: options.Output = Path("runs/demo"),
    workers: int | None = None,
    no_browser: bool = False,
    as_json: options.Json = False,
) -> None:
    """Run a small study of a bundled agent, from episodes to a report.

    Ends with the report in your browser, at the worst moment of a game.

    For example:

        safemargin demo
        safemargin demo --no-browser -o /tmp/demo

    Args:
        output: the folder to write to
        workers: processes (default: one on each core)
        no_browser: only print the report's path, as where there is no screen
    """
    from safemargin.cli.demo import run

    run(output, workers=workers, browser=not no_browser, as_json=as_json)


@options.app.command(group=options.BUNDLED)
@options.on_ctrl_c(options.KEPT)
def reproduce(
    name: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    natural: Annotated[int | None, Parameter(metavar="K")] = None,
    spread: Annotated[int | None, Parameter(metavar="K")] = None,
    workers: int | None = None,
    output: Annotated[options.Output, Parameter(metavar="FOLDER")] = Path("runs/reproduction"),
    tables: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    machine: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    as_json: options.Json = False,
) -> None:
    """Repeat a study of the paper with the bundled agents, or continue it.

    Without NAME, lists the studies and how far along each is. Run the same command again to
    continue after an interruption. Once all moments are measured, FOLDER/NAME/tables holds the
    data behind the tables and figures; `python reproduction/build.py --studies FOLDER` in the
    repository draws them.

    For example:

        safemargin reproduce
        safemargin reproduce beamrider-a3c --natural 500 --spread 500

    Args:
        name: one of the studies
        natural: number of natural moments (default: as many as the study names)
        spread: number of spread moments (default: as many as the study names)
        workers: number of workers (default: one per core)
        output: the folder of all these studies
        tables: write the study's tables here instead
        machine: how the tables name the machine (default: what can be found out about it)
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.cli.paper_studies import begin, keep_tables, paper_study

    if name is None:
        _list(output, as_json=as_json)
        return
    paper = paper_study(name)
    folder = output / paper.name
    with ProgressBar() as progress, begin(paper, folder, progress) as study:
        study.collect(
            paper.natural if natural is None else natural,
            paper.spread if spread is None else spread,
            workers=workers,
            progress=progress,
        )
        written = keep_tables(study, paper, tables or folder / "tables", machine=machine)
        status = study.status()
    if as_json:
        options.print_json({"study": str(folder), "tables": str(written), **status.to_dict()})
        return
    print(
        f"{paper.name}: {status.moments['natural']} natural and {status.moments['spread']} "
        f"spread moments, {status.distinct_moments} distinct"
    )
    print(written)


def _list(folder: Path, *, as_json: bool) -> None:
    """Print the paper's studies, and how far each is."""
    from safemargin.cli.console import print_records
    from safemargin.cli.paper_studies import PAPER_STUDIES
    from safemargin.core.records import PHASES
    from safemargin.study.store import DATABASE

    rows: list[dict[str, Any]] = []
    for paper in PAPER_STUDIES.values():
        moments: Mapping[str, int] = dict.fromkeys(PHASES, 0)
        if (folder / paper.name / DATABASE).exists():
            with sm.Study.open(folder / paper.name) as study:
                moments = study.status().moments
        wanted = {"natural": paper.natural, "spread": paper.spread}
        about = {"name": paper.name, "purpose": paper.purpose}
        rows.append({**about, "moments": moments, "wanted": wanted})
    if as_json:
        options.print_json({"studies": rows})
        return
    print_records(
        f"The paper's studies, in {folder}",
        rows,
        ("name", lambda row: row["name"]),
        ("natural", lambda row: f"{row['moments']['natural']} of {row['wanted']['natural']}"),
        ("spread", lambda row: f"{row['moments']['spread']} of {row['wanted']['spread']}"),
        ("what", lambda row: row["purpose"]),
    )


@options.app.command(group=options.HELP)
def completion(shell: Literal["bash", "zsh", "fish"], /, *, as_json: options.Json = False) -> None:
    """Print a script with which the Tab key completes commands and options in your shell.

    For example:

        safemargin completion bash > ~/.local/share/bash-completion/completions/safemargin
        safemargin completion zsh > ~/.zfunc/_safemargin    # a folder in your fpath
        safemargin completion fish > ~/.config/fish/completions/safemargin.fish

    Args:
        shell: the shell that you use
    """
    script = options.app.generate_completion(prog_name="safemargin", shell=shell)
    if as_json:
        options.print_json({"shell": shell, "script": script})
    else:
        print(script)
