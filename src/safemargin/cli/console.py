"""Progress and notes on standard error, tables on standard output."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich import progress
from rich.table import Table
from rich.text import Text

from safemargin.cli.options import About, plain_console, print_note
from safemargin.core.settings import Settings
from safemargin.core.text import counted, duration
from safemargin.environments.doctor.returns import UnlikeTraining
from safemargin.margins.bounds.sample import ESTIMANDS
from safemargin.margins.fitting import NoBound
from safemargin.margins.lookup import Margins
from safemargin.study.plays import FewPlays
from safemargin.study.study import Study
from safemargin.validation.heldout import typical_tolerances

Record = TypeVar("Record")

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
    "recorded": "looking margins up",
    "minari": "playing episodes again",
}


PIECES_ENOUGH = 50
"""The time left is shown after this many pieces of a stage, or a quarter of it if that is less.

The first pieces wait for workers to start, and moments cost very different amounts.
"""


@dataclass(frozen=True)
class _Forecast:
    """A forecast of the time left, and when it was made."""

    made: float
    seconds: float
    low: float
    high: float

    def __str__(self) -> str:
        gone = time.monotonic() - self.made
        expected, low, high = (
            duration(max(each - gone, 0.0)) for each in (self.seconds, self.low, self.high)
        )
        return f"about {expected}" + (f" ({low} to {high})" if low != high else "")


class _TimeLeft(progress.TimeRemainingColumn):
    """The time left: as forecast, or by the pace once enough pieces are done to know it."""

    def render(self, task: progress.Task) -> Text:
        if task.finished or task.fields["enough"]:
            return super().render(task)
        forecast = task.fields["forecast"]
        text = "-:--:--" if forecast is None else str(forecast)
        return Text(text, style="progress.remaining")


class ProgressBar:
    """Shows progress: bars with the time left on a terminal, a line now and then elsewhere.

    Used as a context manager, so that an error or Ctrl-C leaves the terminal as it was.
    """

    SECONDS_BETWEEN_LINES = 15.0

    def __init__(self) -> None:
        console = plain_console(stderr=True)
        self._live = console.is_terminal and console.color_system is not None
        self._bars = progress.Progress(
            progress.TextColumn("{task.description:<26}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            _TimeLeft(elapsed_when_finished=False),
            console=console,
            disable=not self._live,
            speed_estimate_period=120,
        )
        self._stage = ""

    def __enter__(self) -> ProgressBar:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._bars)
            stack.enter_context(warnings.catch_warnings())
            for category in AT_ONCE:
                warnings.simplefilter("always", category)
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            self._close = stack.pop_all().close
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def stage(self, name: str, *, total: int, done: int) -> None:
        """Start a stage, or change the total of the current one."""
        if name != self._stage:
            self._stage, self._printed = name, time.monotonic()
            fields: dict[str, Any] = {"speed": "", "steps": 0, "pieces": 0, "enough": False}
            fields["forecast"] = None
            self._bars.add_task(STAGES.get(name, name), total=total, completed=done, **fields)
        self._bars.update(self._bars.tasks[-1].id, total=total, completed=done)

    def advance(self, steps: int) -> None:
        """Count one more finished piece of the stage, which took this many simulator steps."""
        task = self._bars.tasks[-1]
        steps += task.fields["steps"]
        elapsed = max(task.elapsed or 0.0, 1e-9)
        speed = f"{steps / elapsed:,.0f} steps/s" if steps else ""
        now, pieces = time.monotonic(), task.fields["pieces"] + 1
        if pieces == 1:  # time counts from here on, when workers have started
            self._first_piece = now
        total, done = int(task.total or 0), int(task.completed) + 1
        enough = pieces > min(PIECES_ENOUGH, total / 4)
        counts = {"steps": steps, "speed": speed, "pieces": pieces, "enough": enough}
        self._bars.update(task.id, advance=1, **counts)
        if not self._live and total > 1 and now - self._printed > self.SECONDS_BETWEEN_LINES:
            self._printed = now
            parts = [f"{task.description}: {done} of {total}", speed]
            if enough and pieces > 1:
                left = (now - self._first_piece) / (pieces - 1) * (total - done)
                parts.append(f"about {duration(left)} left")
            elif (forecast := task.fields["forecast"]) is not None:
                parts.append(f"{forecast} left")
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def expect(self, seconds: float, low: float, high: float) -> None:
        """Show this forecast of the time left until enough pieces are done."""
        forecast = _Forecast(time.monotonic(), seconds, low, high)
        self._bars.update(self._bars.tasks[-1].id, forecast=forecast)


def _show_warning(
    usual: Any, message: Warning | str, category: type[Warning], *where: Any, **more: Any
) -> None:
    """Show at once, as a note, what matters before hours are spent."""
    if issubclass(category, AT_ONCE):
        print_note(str(message))
    else:
        usual(message, category, *where, **more)


@contextlib.contextmanager
def study_to_judge(path: Path, about: About | None = None) -> Iterator[Study]:
    """Open a study, and note on standard error what its data do not allow and what is missing."""
    recording = warnings.catch_warnings(record=True, action="always", category=NoBound)
    with Study.open(path, **vars(about or About())) as study, recording as caught:
        yield study
        left = study.status().estimates_left
    if left:
        print_note(
            f"the study is not finished ({counted(left, 'estimate')} left); "
            "only moments measured for every n are used"
        )
    for each in caught or ():
        if issubclass(each.category, NoBound):
            print_note(str(each.message))
        else:
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on standard output; as plain text if that is not a terminal.

    A cell may be text, a whole number, a number to show with three decimals, or None: a dash.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*map(as_cell, row))
    console = plain_console()
    if not console.is_terminal:  # no terminal, no width: never cut a column
        console = plain_console(width=max(console.width, 200))
    console.print(table)


def print_records(
    title: str, records: Iterable[Record], *columns: tuple[str, Callable[[Record], Any]]
) -> None:
    """Print a table of records; a column is a heading and what its cells show of a record."""
    headings = [heading for heading, _ in columns]
    print_table(title, headings, [[show(record) for _, show in columns] for record in records])


def as_cell(value: Any) -> str:
    """Write a cell of a table."""
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


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
        f"{ESTIMANDS[margins.estimand]}): how many {margins.measured.mistakes} the agent can "
        "afford" + ("" if margins.measured.usual else f" (tolerance: {margins.measured.loss})"),
        ["tolerance \\ " + margins.proxy, *distinct(proxies)],
        [[f"{tolerance:g}", *margins(proxies, tolerance)] for tolerance in tolerances],
    )


def distinct(values: Iterable[float]) -> list[str]:
    """Write numbers with the fewest digits that tell them apart."""
    numbers = list(values)
    for digits in range(3, 17):
        texts = [f"{number:.{digits}g}" for number in numbers]
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


def say_how_it_plays(environment: str, policy: Any) -> None:
    """Say on standard error what an rl-zoo folder brings along."""
    if policy is None and environment.startswith("rl-zoo:"):
        from safemargin.policies.rl_zoo import PICKLES, read_folder

        folder = read_folder(environment.partition(":")[2])
        print(f"{folder.described}; {PICKLES}", file=sys.stderr)


def note_choice(settings: Settings, environment: str, asked: str | None) -> None:
    """Say on standard error how a policy acts that its own library does not let act greedily."""
    choice = settings.action_choice
    if asked is None and choice != "greedy" and not environment.startswith("rl-zoo:"):
        some = f" (epsilon {settings.epsilon:g})" if choice == "epsilon-greedy" else ""
        print_note(
            f"the policy acts {choice}{some}, as its own library evaluates it; --action-choice "
            "says otherwise"
        )
