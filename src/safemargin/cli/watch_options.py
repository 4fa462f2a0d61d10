"""The words of `watch` and `audit`: their options and their help."""

from __future__ import annotations

from pathlib import Path

from safemargin.cli.base import AddCommand, Run, add_environment_arguments, add_scores

DEFAULT_PORT = 8718


def add_watch_options(command: AddCommand, run: Run) -> None:
    """Declare `watch`."""
    watch = command(
        "watch",
        run,
        "watch a fleet of agents on a local web page, and take over where it matters",
        "The page shows every agent with its margin; the least comes first, and those below\n"
        "--call-at call you. Take one over with T, steer it with the keys shown, hand it\n"
        "back with Escape. Ctrl-C ends it all.\n\n"
        "Every call, take-over, human action and hand-back goes into the log, which can only\n"
        "grow; the same --log after a crash goes on where it was.\n\n"
        "examples:\n"
        "  safemargin watch --agents 12 zoo:beamrider-a3c margins.json\n"
        "  safemargin watch --remote margins.json          # agents that run elsewhere report\n"
        "  safemargin watch --remote --host 0.0.0.0        # … from other machines, too\n"
        "  safemargin watch --replay watch.db              # what happened, on a page\n"
        "  safemargin audit watch.db                       # … as text, and whether it is whole\n\n"
        "An agent elsewhere reports with sm.RemoteOverseer(address, name=…, token=…).",
    )
    watch.add_argument(
        "what",
        nargs="*",
        metavar="POLICY MARGINS",
        help="the policy to run here and its margins file; with --remote, a margins file for "
        "agents that report scores only, or nothing",
    )
    running = watch.add_argument_group("agents that run here")
    running.add_argument("--agents", type=int, metavar="A", help="how many (default 4)")
    running.add_argument(
        "--env",
        metavar="ENV",
        help="their environment (default: the one of the margins file, unless that is a function)",
    )
    add_environment_arguments(running)
    add_scores(running)
    running.add_argument(
        "--speed", type=float, default=15.0, metavar="S", help="decisions a second (default 15)"
    )
    running.add_argument("--seed", type=int, default=0, help="of their first episodes (default 0)")
    calling = watch.add_argument_group("when they call")
    calling.add_argument(
        "--tolerance",
        type=float,
        metavar="Z",
        help="the loss you accept, in reward units (default: one at which margins differ)",
    )
    calling.add_argument(
        "--call-at", type=int, default=1, metavar="N", help="call below this margin (default 1)"
    )
    calling.add_argument(
        "--release-at", type=int, metavar="N", help="until it is this again (default: the next n)"
    )
    calling.add_argument(
        "--pause", type=int, default=0, metavar="K", help="decisions between two calls (default 0)"
    )
    calling.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="an agent that begins to call waits up to S seconds for somebody to take it over "
        "(default 0: it goes on meanwhile)",
    )
    people = watch.add_argument_group("people")
    people.add_argument(
        "--on-lost",
        choices=["go-on", "hold", "stop"],
        default="go-on",
        help="an agent whose person has closed the page: acts by itself again (go-on, default), "
        "waits for somebody (hold), or ends (stop)",
    )
    people.add_argument(
        "--grace",
        type=float,
        default=20.0,
        metavar="S",
        help="… once they have been gone for S seconds (default 20)",
    )
    people.add_argument(
        "--webhook",
        metavar="URL",
        help="post calls there as JSON, at most one in 10 s; agents do not wait for it",
    )
    people.add_argument(
        "--run",
        dest="to_run",
        metavar="COMMAND",
        help="run this on calls, at most once in 10 s, with the call as JSON on its standard input",
    )
    people.add_argument(
        "--log",
        type=Path,
        default=Path("watch.db"),
        metavar="FILE",
        help="where everything is logged (default watch.db; an older one is continued)",
    )
    people.add_argument(
        "--replay", type=Path, metavar="LOG", help="show what happened instead; runs no agents"
    )
    serving = watch.add_argument_group("the server")
    serving.add_argument("--remote", action="store_true", help="agents elsewhere may report")
    serving.add_argument("--port", type=int, help=f"default {DEFAULT_PORT}; 0 takes any free one")
    serving.add_argument(
        "--host",
        default="127.0.0.1",
        help="default 127.0.0.1, this machine only; with another one, people need a token as well",
    )
    serving.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the agents' token (default: SAFEMARGIN_TOKEN, or one made beside the log)",
    )
    serving.add_argument("--no-browser", action="store_true", help="only print the address")


def add_audit_options(command: AddCommand, run: Run) -> None:
    """Declare `audit`."""
    audit = command(
        "audit",
        run,
        "print the log of a watched fleet, and check that nothing was altered",
        "example:\n  safemargin audit watch.db --agent 'agent 03'\n"
        "exit status 2 where an entry was altered or is missing",
    )
    audit.add_argument("log", type=Path, metavar="LOG", help="what `watch` wrote")
    audit.add_argument("--agent", metavar="NAME", help="only this one's entries")
