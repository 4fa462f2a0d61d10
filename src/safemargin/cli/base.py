"""What the commands share: exit statuses, options that several have, answers as JSON."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from safemargin.errors import InvalidInput

OK, FINDING, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

Run = Callable[[argparse.Namespace], int]
"""What a command does; the return value is the exit status."""


class AddCommand(Protocol):
    """Declares a command; gives the parser for its options."""

    def __call__(
        self, name: str, run: Run, summary: str, epilog: str = ""
    ) -> argparse.ArgumentParser: ...


def numbers(text: str) -> list[float]:
    """An option such as 0.5,1."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be numbers with commas, like 0.5,1"
        ) from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """An option such as 1,2,4,8."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be whole numbers with commas, like 1,2,4,8"
        ) from None


def _plain(value: Any) -> Any:
    """Infinity is no JSON number: it is told as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def add_study(parser: argparse.ArgumentParser) -> None:
    """The study that a command reads."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study's folder")


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """How a bound is fitted: confidence, method, proxy."""
    parser.add_argument("--confidence", type=float, default=0.95, help="β (default 0.95)")
    parser.add_argument(
        "--method",
        default="calibrated",
        help="of the bound: calibrated (default), isotonic, boosted, tolerance or paper",
    )
    parser.add_argument(
        "--proxy", metavar="NAME", help="default: the one the moments were spread by"
    )


def add_estimand(parser: argparse.ArgumentParser) -> None:
    """Whose loss a bound is about."""
    parser.add_argument(
        "--estimand",
        choices=["mean", "single-run"],
        default="mean",
        help="whose loss: the mean one at a moment (default), or that of a single run",
    )


def add_scores(parser: argparse._ActionsContainer) -> None:
    """What the policy's scores mean."""
    parser.add_argument(
        "--scores",
        choices=["q", "logits", "gaussian", "actions"],
        help="what the policy's scores mean, where the policy itself does not say",
    )


def add_environment_arguments(parser: argparse._ActionsContainer) -> None:
    """What an environment is made with."""
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the environment, e.g. is_slippery=false; may be repeated",
    )


def environment_arguments(options: argparse.Namespace) -> dict[str, Any] | None:
    """NAME=VALUE pairs; values are JSON (false, 3, [1, 2]) or Python (False, None), else text."""
    arguments: dict[str, Any] = {}
    for pair in options.env_arg:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--env-arg {pair!r} must look like NAME=VALUE")
        arguments[name] = value
        for read in (ast.literal_eval, json.loads):
            with contextlib.suppress(ValueError, SyntaxError):
                arguments[name] = read(value)
    return arguments or None


def warn_if_unfinished(study: Any) -> None:
    """A note where moments are left to measure."""
    status = study.status()
    if status.estimates_left:
        print(
            f"note: the study is not finished ({status.estimates_left:,} estimates are left); "
            "only moments measured for every n are used",
            file=sys.stderr,
        )
