"""The commands of oversight: what calling somebody would cost and catch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from safemargin.cli.base import (
    FINDING,
    OK,
    AddCommand,
    add_estimand,
    add_fit_options,
    add_study,
    numbers,
    print_json,
    warn_if_unfinished,
)


def add_oversight_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    simulate = command(
        "simulate-oversight",
        run_simulate_oversight,
        "tell what calling below a margin would have cost in attention, and caught",
        "Goes through the study's episodes as a monitor would have, with margins fitted without\n"
        "the episode at hand.\n\n"
        "examples:\n  safemargin simulate-oversight runs/pong --budget 0.05\n"
        "  safemargin simulate-oversight runs/pong --tolerance 0.5,1 --agents 12 -o calls.png\n"
        "exit status 1 where no threshold keeps within the budget",
    )
    add_study(simulate)
    simulate.add_argument(
        "--budget",
        type=float,
        metavar="B",
        help="the share of decisions that people can look at, e.g. 0.05: names call_at",
    )
    simulate.add_argument(
        "--tolerance",
        type=numbers,
        metavar="Z,Z,…",
        help="losses you accept, in reward units (default: a few at which something happens)",
    )
    simulate.add_argument(
        "--within",
        type=int,
        default=8,
        metavar="K",
        help="an event is caught by a call during the K decisions up to it (default 8)",
    )
    simulate.add_argument(
        "--rate",
        type=float,
        default=15.0,
        metavar="R",
        help="decisions a second of one agent (default 15)",
    )
    simulate.add_argument(
        "--agents", type=int, default=1, metavar="A", help="watched at once (default 1)"
    )
    add_fit_options(simulate)
    add_estimand(simulate)
    simulate.add_argument(
        "-o", "--output", type=Path, help="draw it, too: a .png, .svg or .pdf file"
    )


def run_simulate_oversight(options: argparse.Namespace) -> int:
    from safemargin.cli.console import warnings_as_notes
    from safemargin.monitor.simulation import simulate_oversight
    from safemargin.study.study import Study

    with Study.open(options.study) as study, warnings_as_notes():
        attention = simulate_oversight(
            study,
            budget=options.budget,
            tolerances=options.tolerance,
            within=options.within,
            rate=options.rate,
            agents=options.agents,
            confidence=options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
        )
        warn_if_unfinished(study)
    from safemargin.cli.show_attention import print_attention

    if options.output is not None:
        from safemargin.monitor.attention_plot import attention_figure
        from safemargin.study.plots import save_figure

        save_figure(attention_figure(attention), options.output)
    if options.json:
        print_json(attention.to_dict())
    else:
        print_attention(attention)
        if options.output is not None:
            print(f"wrote {options.output}")
    if options.budget is not None and not any(attention.choices):
        print(
            f"safemargin: no threshold keeps within {options.budget:g} of decisions at these "
            "tolerances",
            file=sys.stderr,
        )
        return FINDING
    return OK
