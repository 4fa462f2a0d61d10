"""Measured results: printed, and written to the list in a JSON file when asked."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

COMMITTED = Path(__file__).with_name("results.json")
"""The results of a full round, kept in the repository."""


class Results:
    """Prints the results of one benchmark and, unless the round is a quick one, writes them."""

    def __init__(self, command: str, options: argparse.Namespace) -> None:
        """Take `options` as `add_options` defines them; `command` repeats a full round."""
        self.command = command + (" --quick" if options.quick else "")
        self.path: Path | None = options.output
        if self.path is None and not options.quick:
            self.path = COMMITTED

    def record(self, name: str, value: float, goal: float | None, *, note: str = "") -> None:
        """Print one result and replace the entry of that name in the file, if there is a file."""
        wanted = "" if goal is None else f"   goal {goal:g}"
        print(f"{name:32} {value:10.3f}{wanted}   {note}", flush=True)
        if self.path is None:
            return
        entry = {
            "name": name,
            "value": round(value, 4),
            "goal": goal,
            "machine": machine(),
            "command": self.command,
            **({"note": note} if note else {}),
        }
        entries = json.loads(self.path.read_text()) if self.path.exists() else []
        known = {each["name"]: each for each in entries}
        known[name] = entry
        self.path.write_text(json.dumps(list(known.values()), indent=2) + "\n")


def machine() -> str:
    """Describe the machine in a few words."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def add_options(parser: argparse.ArgumentParser, *, quick: str) -> None:
    """Add the options that all benchmarks share; `quick` is the help of `--quick`."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file to write the results to (default: benchmarks/results.json; with --quick, "
        "results are only printed)",
    )
