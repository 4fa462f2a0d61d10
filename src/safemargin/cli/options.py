"""What the commands share: the application, exit statuses, options, answers as JSON."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter, Token, convert
from rich.console import Console

from safemargin.core.version import __version__
from safemargin.errors import InvalidInput

if TYPE_CHECKING:
    from safemargin.web.access import Access

OK, FINDING, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def _convert(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert a value as cyclopts does, except that 2.7 is not rounded to a whole number."""
    if hint in (int, int | None) and "." in tokens[0].value:
        raise ValueError(f"{tokens[0].value!r} is not a whole number")
    return convert(hint, tokens)


def _shown_default(value: Any) -> str | None:
    """Return a default as it is typed; None hides it."""
    if value is None or value is False or value == ():
        return None
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def group(title: str) -> Group:
    """Return a group of commands or options; --help lists groups in the order of their making."""
    return Group.create_ordered(title)


ARGUMENTS, OPTIONS = group("Arguments"), group("Options")
MEASURE = group("Measure")
MARGINS = group("Fit and check margins")
LOOK = group("See what happened")
OVERSEE = group("Oversee agents")
BUNDLED = group("What comes with the package")
HELP = group("Help")

app = App(
    name="safemargin",
    version=__version__,
    version_flags="--version",
    version_format="plaintext",
    help="""How many mistakes can a reinforcement-learning agent afford right now?

A study from end to end:

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

Exit status: 0 success; 1 a finding (the environment cannot be measured, a checkpoint is worse); 2
bad usage or input; 3 a gate cannot tell yet.
""",
    help_format="markdown",
    default_parameter=Parameter(
        converter=_convert, negative=(), allow_repeating=True, show_default=_shown_default
    ),
    group_arguments=ARGUMENTS,
    group_parameters=OPTIONS,
    group_commands=HELP,
    # Errors, Ctrl-C and the exit status are the business of `main`.
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
"""Every command registers itself here: its parameters are its options, its docstring its help."""


# -- kinds of options --------------------------------------------------------------------------


def _split(text: str, kind: type, what: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} must be comma-separated {what}") from None


def _numbers(hint: Any, tokens: Sequence[Token]) -> list[float]:
    return _split(tokens[0].value, float, "numbers, such as 0.5,1")


def _whole_numbers(hint: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(_split(tokens[0].value, int, "whole numbers, such as 1,2,4"))


Numbers = Annotated[
    list[float],
    Parameter(converter=_numbers, n_tokens=1, allow_leading_hyphen=True, metavar="Z,Z,…"),
]
"""Numbers with commas, like 0.5,1."""

WholeNumbers = Annotated[
    tuple[int, ...], Parameter(converter=_whole_numbers, n_tokens=1, metavar="N,N,…")
]
"""Whole numbers with commas, like 1,2,4,8."""

Json = Annotated[bool, Parameter(name="--json", help="print one JSON document on standard output")]
StudyFolder = Annotated[Path, Parameter(name="STUDY", help="a study's folder")]
Output = Annotated[Path, Parameter(name=("--output", "-o"))]
Estimand = Annotated[
    Literal["mean", "single-run", "p90", "p95", "p99", "sd"],
    Parameter(
        help="which loss is bounded: the mean at a moment, that of a single run, or how it varies "
        "over a moment's trials: a percentile (p95) or the standard deviation (sd)"
    ),
]
Trust = Annotated[
    bool,
    Parameter(help="run the code that somebody else's study names: its environment, its policy"),
]
Promise = Annotated[
    Literal["bound", "margin"],
    Parameter(
        help="bound: the loss stays under a bound, at any tolerance; margin: at the --tolerance "
        "you name, of the moments that are granted a margin at most 1 − β fail, which grants more"
    ),
]
Confidence = Annotated[float, Parameter(help="β, the confidence of the margins")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a bound is fitted."""

    confidence: Confidence = 0.95
    method: str = "calibrated"
    """calibrated, isotonic, boosted, tolerance or paper"""
    proxy: Annotated[str | None, Parameter(metavar="NAME")] = None
    """the proxy to fit on (default: the one that the moments were spread over); `learned` once
    `safemargin learn` has made it"""
    estimand: Estimand = "mean"


@Parameter(name="*", group=group("Which of the things that the study measures"))
@dataclass(frozen=True, kw_only=True)
class About:
    """The mistakes and the loss that an answer is about."""

    perturb: Annotated[str | None, Parameter(metavar="P")] = None
    """the mistakes, as `collect --perturb` named them (default: the first ones of the study)"""
    signal: Annotated[str | None, Parameter(metavar="S")] = None
    """what is lost, as `collect --signal` named it (default: the first one of the study)"""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """What an environment is made with, and how its policy is to be read."""

    env_arg: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    """an argument of the environment, e.g. is_slippery=false; may be repeated"""
    scores: Literal["q", "logits", "gaussian", "actions"] | None = None
    """what the policy's scores mean, if the policy itself does not say"""
    normalize: Annotated[str | None, Parameter(metavar="FILE")] = None
    """the VecNormalize statistics of a Stable-Baselines3 .zip (a pickle, so name only a file you
    trust), or none if it was trained without"""

    def policy(self, text: str | None) -> Any:
        """Return the policy that was named, together with its statistics."""
        if text is None and self.normalize is not None:
            raise InvalidInput("--normalize needs a POLICY, whose statistics it names")
        from safemargin.policies.loading import normalized

        return normalized(text, self.normalize)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The NAME=VALUE pairs; a value is JSON (false, [1, 2]), Python (False, None) or text."""
        arguments: dict[str, Any] = {}
        for pair in self.env_arg:
            name, equals, value = pair.partition("=")
            if not equals:
                raise InvalidInput(f"--env-arg {pair!r} must look like NAME=VALUE")
            arguments[name] = value
            for read in (ast.literal_eval, json.loads):
                with contextlib.suppress(ValueError, SyntaxError):
                    arguments[name] = read(value)
        return arguments or None


# -- answers -----------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Replace what JSON has no number for, like infinity, by text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def print_answer(found: Any, show: Callable[[Any], object], *, as_json: bool) -> None:
    """Print a record that was found: as JSON, or as `show` prints it."""
    if as_json:
        print_json(found.to_dict())
    else:
        show(found)


def print_written(found: dict[str, Any], paths: Sequence[Path], *, as_json: bool) -> None:
    """Print what was written: as JSON, or as one path a line, with notes on standard error."""
    if as_json:
        print_json(found)
        return
    for note in found.get("notes", ()):
        print_note(note)
    for path in paths:
        print(path)


def plain_console(**options: Any) -> Console:
    """Return a console that prints no escape codes where NO_COLOR is set."""
    return Console(color_system=None if os.environ.get("NO_COLOR") else "auto", **options)


def print_note(text: str) -> None:
    """Print a note on standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def note_new_parents(output: Path) -> None:
    """Print a note if an output's folder is missing: it will be made, or its name is mistyped."""
    missing = [folder for folder in output.parents if not folder.exists()]
    if missing:
        print_note(f"the folder {missing[0]} does not exist and will be made")


KEPT = "stopped; everything finished so far is kept, run the same command again to continue"
"""What `on_ctrl_c` says of commands that collect."""


@contextlib.contextmanager
def on_ctrl_c(said: str) -> Iterator[None]:
    """Have `main` say this when Ctrl-C ends a command, unless something within it says more."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(*(stopped.args or [said])) from None


def serve_page(
    page: Any,
    bound: socket,
    what: str,
    *,
    browser: bool,
    as_json: bool,
    access: Access,
    token: str | None = None,
    **options: Any,
) -> None:
    """Serve a page until Ctrl-C, and say where it is; `token` is that of agents elsewhere."""
    from safemargin.web.server import serve

    def started(address: str) -> None:
        query = access.query
        if as_json:
            tokens = {} if token is None else {"token": token}
            print(json.dumps({"address": address + query, **tokens}), flush=True)
            return
        print(f"{what} is at {address}{query}  (Ctrl-C ends it)", flush=True)
        if token is not None:
            print(f"agents report to {address} with the token {token}", flush=True)

    try:
        serve(page, bound, browser=browser, started=started, query=access.visit(), **options)
    except KeyboardInterrupt:
        print(file=sys.stderr)
