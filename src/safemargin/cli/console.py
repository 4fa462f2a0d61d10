"""Progress and notes on standard error, tables on standard output."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from safemargin.cli.options import print_note
from safemargin.core.text import duration
from safemargin.environments.doctor.returns import UnlikeTraining
from safemargin.margins.bounds.sample import ESTIMANDS
from safemargin.margins.fitting import NoBound
from safemargin.margins.lookup import Margins
from safemargin.study.plays import FewPlays
from safemargin.validation.heldout import typical_tolerances

AT_ONCE = (FewPlays, UnlikeTraining)
"""Warnings that matter before hours are spent."""

STAGES = {
    "doctor": "examining the environment",
    "episodes": "running episodes",
    "criticality": "measuring criticality",
    "compare": "comparing methods",
    "pilot": "measuring a few moments",
    "report": "writing the report",
    "highlights": "filming",
}


class ProgressBar:
    """Shows progress: bars with the time left on a terminal, a line now and then elsewhere.

    Used as a context manager, so that an error or Ctrl-C leaves the terminal as it was.
    """

    SECONDS_BETWEEN_LINES = 15.0

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            disable=not self._live,
            speed_estimate_period=120,
        )
        self._task: TaskID | None = None
        self._name = ""
        self._total = self._done = self._done_at_start = self._steps = 0
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> ProgressBar:
        self._bars.start()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        for category in AT_ONCE:
            warnings.simplefilter("always", category)
        self._show_warning = warnings.showwarning
        warnings.showwarning = self._warned
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._warnings.__exit__(kind, error, trace)
        self._bars.stop()

    def _warned(
        self, message: Warning | str, category: type[Warning], *where: Any, **more: Any
    ) -> None:
        """Show at once, as a note, what matters before hours are spent."""
        if issubclass(category, AT_ONCE):
            print_note(str(message))
        else:
            self._show_warning(message, category, *where, **more)

    def stage(self, name: str, *, total: int, done: int) -> None:
        """Start a stage, or change the total of the current one."""
        if name != self._name:
            self._name, self._steps = name, 0
            self._started = self._printed = time.monotonic()
            self._done_at_start = done
            self._task = self._bars.add_task(
                STAGES.get(name, name), total=total, completed=done, speed=""
            )
        self._total, self._done = total, done
        if self._task is not None:
            self._bars.update(self._task, total=total, completed=done)

    def advance(self, steps: int) -> None:
        """Count one more finished piece of the stage, which took this many simulator steps."""
        self._done += 1
        self._steps += steps
        elapsed = max(time.monotonic() - self._started, 1e-9)
        speed = f"{self._steps / elapsed:,.0f} steps/s" if self._steps else ""
        if self._task is not None:
            self._bars.update(self._task, advance=1, speed=speed)
        if (
            not self._live
            and self._total > 1
            and time.monotonic() - self._printed > self.SECONDS_BETWEEN_LINES
        ):
            self._printed = time.monotonic()
            left = elapsed / (self._done - self._done_at_start) * (self._total - self._done)
            print(
                f"{STAGES.get(self._name, self._name)}: {self._done} of {self._total}, "
                + (f"{speed}, " if speed else "")
                + f"about {duration(left)} left",
                file=sys.stderr,
                flush=True,
            )


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show the warning that the data allow no bound as a note on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoBound)
        yield
    for warning in caught:
        if issubclass(warning.category, NoBound):
            print_note(str(warning.message))
        else:
            warnings.showwarning(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table on standard output; as plain text if that is not a terminal."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # no terminal, no width: never cut a column
        console = Console(width=max(console.width, 200))
    console.print(table)


def print_margins(margins: Margins, tolerances: Sequence[float] | None = None) -> None:
    """Print a table of margins for a few proxies and tolerances."""
    if margins.bound.looks_at_n:
        print(f"the proxy {margins.proxy!r} looks at n, so there is no table; look values up")
        return
    if not tolerances:
        tolerances = typical_tolerances(margins.bound.upper)
    proxies = np.linspace(margins.lowest_proxy, margins.highest_proxy, 9)
    print_table(
        f"Safety margins (confidence {margins.confidence:g}, method {margins.method!r}, "
        f"{ESTIMANDS[margins.estimand]}): how many random actions the agent can afford",
        ["tolerance \\ " + margins.proxy, *distinct(proxies)],
        [
            [f"{tolerance:g}", *(str(margin) for margin in margins(proxies, tolerance))]
            for tolerance in tolerances
        ],
    )


def distinct(values: Iterable[float]) -> list[str]:
    """Write numbers with the fewest digits that tell them apart."""
    numbers = list(values)
    for digits in range(3, 17):
        texts = [f"{number:.{digits}g}" for number in numbers]
        if len(set(texts)) == len(set(numbers)):
            break
    return texts
