"""The command line: one file for each group of commands, and their tables.

The groups are `study`, `margins`, `pages`, `watch` (which `fleet` runs), `fidelity`, `attack`,
`gate`, `trace` and `bundled` (with `demo` and `paper_studies`). A command is a function under
`@app.command`: its parameters are its options, its docstring is its help. Options that several
commands have, and the application itself, are in `options`, those of mistakes and losses in
`measures`; `app` runs a command and turns errors into a sentence and an exit status. `console`
shows progress and tables, and modules called `show_…` print what a command found. A command imports
what it needs when it runs, so that starting stays quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; Ctrl-C ends it quietly while it loads, too."""
    try:
        from safemargin.cli.app import main as run
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return run(arguments)
