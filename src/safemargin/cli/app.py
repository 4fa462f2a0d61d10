"""The command line: one verb for each thing a study can do."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from safemargin.cli.base import BAD_INPUT, FINDING, INTERRUPTED, OK, Run
from safemargin.cli.bundled import add_bundled_commands
from safemargin.cli.margins import add_margin_commands
from safemargin.cli.oversight import add_oversight_commands
from safemargin.cli.pages import add_page_commands
from safemargin.cli.reproduce import add_reproduce_commands
from safemargin.cli.study import add_study_commands
from safemargin.cli.watch import add_watch_commands
from safemargin.core.version import __version__
from safemargin.errors import EnvironmentFault, SafemarginError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # γ on a terminal that has only ASCII
            output.reconfigure(errors="replace")
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        if sys.stdout is not None:  # None where it was closed by the caller
            sys.stdout.flush()
    except SafemarginError as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        print(
            "\nstopped; all that was finished is kept, run the same command again to go on",
            file=sys.stderr,
        )
        return INTERRUPTED
    except BrokenPipeError:  # e.g. `safemargin status … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        print(f"safemargin: cannot write the answer: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    return status


def _fail(error: SafemarginError, options: argparse.Namespace) -> int:
    status = FINDING if isinstance(error, EnvironmentFault) else BAD_INPUT
    if options.json:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    print(f"safemargin: {error}", file=sys.stderr)
    return status


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(
        prog="safemargin",
        description="How many mistakes can a reinforcement-learning agent afford right now?",
        epilog="""a study from end to end:
  safemargin doctor   CartPole-v1 --policy agent.onnx
  safemargin collect  CartPole-v1 agent.onnx -o runs/cartpole
  safemargin fit      runs/cartpole -o margins.json
  safemargin margin   margins.json --proxy 3.2 --tolerance 0.5
  safemargin validate runs/cartpole
  safemargin compare  runs/cartpole --tolerance 0.5
  safemargin plot     runs/cartpole -o figures/
  safemargin report   runs/cartpole -o report.html
  safemargin explore  runs/cartpole
  safemargin simulate-oversight runs/cartpole --budget 0.05

exit status: 0 all well; 1 a finding (the environment cannot be measured); 2 bad usage or input""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Run, summary: str, epilog: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        added.add_argument(
            "--json", action="store_true", help="one JSON document on standard output"
        )
        return added

    for add in (
        add_study_commands,
        add_margin_commands,
        add_page_commands,
        add_oversight_commands,
        add_watch_commands,
        add_reproduce_commands,
        add_bundled_commands,
    ):
        add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
