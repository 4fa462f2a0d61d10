"""The commands of what comes with the package: zoo, demo."""

from __future__ import annotations

import argparse
from pathlib import Path

from safemargin.cli.base import OK, AddCommand, print_json


def add_bundled_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    zoo = command(
        "zoo",
        run_zoo,
        "list the bundled agents, or show one",
        "examples:\n  safemargin zoo\n  safemargin zoo show pong-a3c",
    )
    zoo.set_defaults(agent=None)
    show = zoo.add_subparsers(metavar="[show NAME]").add_parser(
        "show", help="print an agent's card", description="Print an agent's card."
    )
    show.add_argument("agent", metavar="NAME", help="of the agent, as `safemargin zoo` lists it")
    show.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # else it would undo `zoo --json show`
        help="one JSON document on standard output",
    )

    demo = command("demo", run_demo, "a small study of a bundled agent, from episodes to pictures")
    demo.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/demo"),
        help="the folder (default runs/demo)",
    )
    demo.add_argument("--workers", type=int, help="processes (default: one on each core)")


def run_zoo(options: argparse.Namespace) -> int:
    from safemargin.cli.show_zoo import print_agents, print_card, summary
    from safemargin.policies.zoo import zoo_agents, zoo_card

    if options.agent is not None:
        card = zoo_card(options.agent)
        if options.json:
            print_json(card)
        else:
            print_card(card)
    elif options.json:
        print_json([summary(card) for card in zoo_agents()])
    else:
        print_agents(zoo_agents())
    return OK


def run_demo(options: argparse.Namespace) -> int:
    from safemargin.cli.demo import run

    run(options.output, workers=options.workers, as_json=options.json)
    return OK
