"""The command that repeats the paper's studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from safemargin.cli.base import OK, AddCommand, print_json

FOLDER = Path("runs/reproduction")


def add_reproduce_commands(command: AddCommand) -> None:
    """Declare the command with its options."""
    reproduce = command(
        "reproduce",
        run_reproduce,
        "repeat a study of the paper with the bundled agents, or go on with it",
        "Without NAME: the studies, and how far each is. Run the same command again to go on\n"
        "after an interruption. When all moments are measured, FOLDER/NAME/tables holds what\n"
        "tables and figures are made from: python reproduction/build.py --studies FOLDER\n\n"
        "examples:\n  safemargin reproduce\n"
        "  safemargin reproduce beamrider-a3c --natural 500 --spread 500",
    )
    reproduce.add_argument("name", nargs="?", metavar="NAME", help="one of the studies")
    reproduce.add_argument(
        "--natural", type=int, metavar="K", help="natural moments (default: the study's own number)"
    )
    reproduce.add_argument(
        "--spread", type=int, metavar="K", help="spread moments (default: the study's own number)"
    )
    reproduce.add_argument("--workers", type=int, help="how many (default: one on each core)")
    reproduce.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        default=FOLDER,
        help=f"the folder with all these studies (default {FOLDER})",
    )
    reproduce.add_argument(
        "--tables", type=Path, metavar="FOLDER", help="write STUDY's tables here instead"
    )
    reproduce.add_argument(
        "--machine", metavar="TEXT", help="how the tables name the machine (default: found out)"
    )


def run_reproduce(options: argparse.Namespace) -> int:
    """Collect one of the paper's studies and keep its tables; or tell how far all are."""
    from safemargin.cli.console import ProgressBar
    from safemargin.study.paper_studies import begin, keep_tables, paper_study

    if options.name is None:
        return _list(options)
    paper = paper_study(options.name)
    folder = options.output / paper.name
    natural = paper.natural if options.natural is None else options.natural
    spread = paper.spread if options.spread is None else options.spread
    with ProgressBar() as progress:
        study = begin(paper, folder, progress)
        with study:
            study.collect(natural, spread, workers=options.workers, progress=progress)
            tables = keep_tables(
                study, paper, options.tables or folder / "tables", machine=options.machine
            )
            status = study.status()
    if options.json:
        print_json({"study": str(folder), "tables": str(tables), **status.to_dict()})
    else:
        print(f"{paper.name}: {status.moments['natural']} natural and {status.moments['spread']} "
              f"spread moments, {status.distinct_moments} distinct")  # fmt: skip
        print(tables)
    return OK


def _list(options: argparse.Namespace) -> int:
    from safemargin.cli.console import print_table
    from safemargin.study.paper_studies import PAPER_STUDIES
    from safemargin.study.store import DATABASE
    from safemargin.study.study import Study

    rows = []
    for paper in PAPER_STUDIES.values():
        moments = {"natural": 0, "spread": 0}
        if (options.output / paper.name / DATABASE).exists():
            with Study.open(options.output / paper.name) as study:
                moments = dict(study.status().moments)
        rows.append((paper, moments))
    if options.json:
        print_json(
            [
                {"name": paper.name, "purpose": paper.purpose, "moments": moments,
                 "wanted": {"natural": paper.natural, "spread": paper.spread}}
                for paper, moments in rows
            ]
        )  # fmt: skip
    else:
        print_table(
            f"The paper's studies, in {options.output}",
            ["name", "natural", "spread", "what"],
            [
                [
                    paper.name,
                    f"{moments['natural']} of {paper.natural}",
                    f"{moments['spread']} of {paper.spread}",
                    paper.purpose,
                ]
                for paper, moments in rows
            ],
        )
    return OK
