"""The entry point: run one command, turn whatever goes wrong into a sentence and a status."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

# Importing these modules registers their commands.
from safemargin.cli import (  # noqa: F401
    attack,
    bundled,
    fidelity,
    gate,
    margins,
    pages,
    study,
    trace,
    watch,
)
from safemargin.cli.options import BAD_INPUT, FINDING, INTERRUPTED, OK, app, plain_console
from safemargin.errors import EnvironmentFault, InvalidInput, SafemarginError

STOPPED = "stopped"
"""What Ctrl-C prints where a command has nothing to add."""

_PARAMETER = re.compile(r"(?<![\w.])[a-z]+(?:_[a-z]+)+(?![\w=(])")
"""The name of a parameter in a sentence: it has an underscore, and is no part of code."""

HELP_OR_VERSION = ("-h", "--help", "--version")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # γ on a terminal that has only ASCII
            output.reconfigure(errors="replace")
    try:
        if not words:
            raise InvalidInput("which command? `safemargin --help` lists them all")
        if words[0].startswith("-") and words[0] not in HELP_OR_VERSION:
            raise InvalidInput(
                f"the command comes before its options, got {words[0]!r} first; `safemargin "
                "--help` lists all commands"
            )
        status: int | None = app(words, console=plain_console())  # None after --help and --version
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
    except (CycloptsError, SafemarginError) as error:
        wrong = _usage_error(error) if isinstance(error, CycloptsError) else error
        return _fail(wrong, words)
    except KeyboardInterrupt as error:  # see `on_ctrl_c`
        print(f"\n{str(error) or STOPPED}", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:  # e.g. `safemargin status … | head`
        pipe = error.__context__ if isinstance(error, SystemExit) else error  # rich exits itself
        if not isinstance(pipe, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        named = error.filename is not None
        what = f"cannot use {error.filename}" if named else "cannot write the answer"
        print(f"safemargin: {what}: {error.strerror}", file=sys.stderr)
        if named:
            return BAD_INPUT
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    return status or OK


def _usage_error(error: CycloptsError) -> InvalidInput:
    """Say in one sentence what is wrong with a command line, and where to read on."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        text = f"unexpected argument {error.unused_tokens[0]!r}."
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        given = error.keyword
        text = f"{given} needs a value." if given else f"{error.argument.name} is missing."
    else:
        text = " ".join(str(error).split()).partition(" Available commands:")[0]
        text = text[0].lower() + text[1:] + ("" if text.endswith((".", "?")) else ".")
    command = " ".join(["safemargin", *(error.command_chain or ()), "--help"])
    return InvalidInput(f"{text} See `{command}`.")


def _with_options(text: str, command: str) -> str:
    """Name the parameters in an error as they are typed: error_rate is --error-rate."""
    if not (names := set(_PARAMETER.findall(text))) or command not in list(app):
        return text
    options = {each.name for each in app[command].assemble_argument_collection()}
    for name in names:
        option = "--" + name.replace("_", "-")
        if option in options:
            text = re.sub(rf"(?<![\w.]){name}(?![\w=(])", option, text)
    return text


def _fail(error: SafemarginError, words: Sequence[str]) -> int:
    text = _with_options(str(error), words[0]) if words else str(error)
    if "--json" in words:
        print(json.dumps({"error": text, "kind": type(error).__name__}))
    print(f"safemargin: {text}", file=sys.stderr)
    return FINDING if isinstance(error, EnvironmentFault) else BAD_INPUT
