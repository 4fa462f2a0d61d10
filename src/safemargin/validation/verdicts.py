"""One check of a gate, judged: its interval, its verdict, and what more data would show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from safemargin.errors import InvalidInput
from safemargin.validation.checks import Side
from safemargin.validation.effects import (
    Change,
    Verdict,
    chance_of_verdict,
    chance_of_worse,
    games_for,
    verdict_of,
)

DEFAULT_MATTERS: dict[str, str | float | None] = {
    "margins": 0.05,
    "affordable": "10%",
    "critical": 0.1,
    "return": "5%",
    "worst": "25%",
    "called": None,
    "drift": None,
}
"""Kind of check → what matters if nobody says: a share of the old values, or a number. None:
judged only if somebody says what matters. A drift of the proxy is no harm in itself, and what
share of decisions is called varies with each fit until there are thousands of moments."""


def matter(value: str | float | None, scale: float) -> float | None:
    """Return what matters as a number; a text like '5%' is a share of the scale."""
    if value is None:
        return None
    text = str(value).strip()
    share = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) * (scale / 100 if share else 1.0)
    except ValueError:
        number = math.nan
    if not (number >= 0 and math.isfinite(number)):
        raise InvalidInput(
            f"what matters must be a number of at least 0 or a share like 5%, got {value!r}"
        )
    return number


@dataclass(frozen=True)
class Question:
    """What a check asks."""

    kind: str
    name: str
    unit: str
    higher_is_better: bool | None
    matters: str | float | None
    said: bool
    measure: Callable[[Side, Side], Change]
    fewest_moments: int = 0
    """With fewer natural moments than this there is no verdict."""


@dataclass(frozen=True)
class Check:
    """One comparison: an effect with its interval, a verdict, and what more moments would show."""

    kind: str
    """The kind, as `matters` names it."""
    name: str
    """What is compared, for people."""
    unit: str
    higher_is_better: bool | None
    """None: a change in either direction counts."""
    old: float
    new: float
    change: float
    """The new value minus the old one; for margins, minus the share that may break."""
    low: float
    high: float
    """The interval of the change, at the error rate that all checks share."""
    matters: float | None
    """The smallest change that matters; None: the check only informs."""
    said: bool
    """Somebody said what matters; otherwise it is the default."""
    verdict: Verdict | None
    games: int
    """Independent games that were compared."""
    power: float | None
    """The chance that this many moments show a deterioration as large as what matters."""
    needed: int | None
    """Natural moments of each study that would lead to a verdict with probability 0.8, if the
    true change is the one seen; None: there is a verdict, or no number would do."""
    needed_for_matters: int | None
    """Natural moments that would show a deterioration as large as what matters with 0.8."""
    note: str = ""

    @property
    def judged(self) -> bool:
        return self.verdict is not None


def judge(question: Question, old: Side, new: Side, error: float) -> Check:
    """Measure the change and judge it at this error rate."""
    change = question.measure(old, new)
    matters = matter(question.matters, change.scale)
    width = change.half_width(error)
    low, high = change.change - width, change.change + width
    moments = min(int(side.used.sum()) for side in (old, new))
    verdict = power = needed = for_matters = None
    note = ""
    if matters is not None:
        good, effect = _towards_good(question.higher_is_better, low, high, change.change)
        verdict = verdict_of(*good, matters)
        if question.kind == "margins" and verdict == "better":
            verdict = "no worse"  # a promise that is kept is no improvement
        power = chance_of_worse(change, matters, matters, error)
        per_game = moments / change.games
        for_matters = _moments(partial(chance_of_worse, change, matters, matters, error), per_game)
        if change.scale == 0 and str(question.matters).strip().endswith("%"):
            note = f"{question.matters} of 0 is 0, so that any change counts: name a number, "
            note += f"--matters {question.kind}=…"
        if verdict == "cannot tell":
            decided = partial(chance_of_verdict, change, effect, matters, error)
            needed = _moments(decided, per_game)
        if moments < question.fewest_moments:
            verdict, power = "cannot tell", 0.0
            needed = max(needed or 0, question.fewest_moments)
            note = f"it takes {question.fewest_moments} natural moments, there are {moments}"
    return Check(
        kind=question.kind,
        name=question.name,
        unit=question.unit,
        higher_is_better=question.higher_is_better,
        old=change.old,
        new=change.new,
        change=change.change,
        low=low,
        high=high,
        matters=matters,
        said=question.said,
        verdict=verdict,
        games=change.games,
        power=power,
        needed=needed,
        needed_for_matters=for_matters,
        note=note,
    )


def _towards_good(
    higher_is_better: bool | None, low: float, high: float, change: float
) -> tuple[tuple[float, float], float]:
    """Return the interval and the change so that above 0 is good; a change in kind is never."""
    if higher_is_better is None:
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return (-max(abs(low), abs(high)), -nearest), -abs(change)
    return ((low, high), change) if higher_is_better else ((-high, -low), -change)


def _moments(chance: Callable[[float], float], per_game: float) -> int | None:
    """Return the natural moments at which a chance, by the number of games, reaches the power."""
    games = games_for(chance)
    return None if games is None else math.ceil(games * per_game)
