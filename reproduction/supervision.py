"""The results of supervise.py as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from paper_values import CAPTURED
from stored import StoredStudy
from supervise import RESULT, STRATEGIES
from tables import MISSING, markdown

from safemargin.core.records import Floats
from safemargin.criticality.stopping import student_quantile

WHO = {
    "nobody": "nobody",
    "random": "chance",
    "proxy": "the highest proxies",
    "margin": "the lowest margins (ζ = 0.5)",
    "criticality": "the highest true criticality",
    "gain": "the most to gain",
}
WHATS = ("deaths", "reward")
ALIKE = "the lowest margins (ζ = 0.5), which are the highest proxies"


def supervised(studies: Mapping[str, StoredStudy]) -> str:
    """Looks, deaths and reward, by who chooses what the overseer looks at."""

    def rows_of(found: Mapping[str, Any]) -> Iterator[list[str]]:
        for strategy, games in games_of(found).items():
            looks = [one["looked_at"] for one in games.values()]
            decisions = sum(one["decisions"] for one in games.values())
            overruled = sum(one["overruled"] for one in games.values())
            row = [_label(strategy, found), str(len(games)), f"{sum(looks) / decisions:.1%}"]
            row += [f"{min(looks)} – {max(looks)}", f"{overruled / decisions:.1%}"]
            for what in WHATS:
                row.append(f"{np.mean([_rate(one, what) for one in games.values()]):.2f}")
            yield row

    header = ["games", "looked at", "looks in a game", "overruled",
              "deaths per 1,000 decisions", "reward per 1,000 decisions"]  # fmt: skip
    return _by_agent(studies, header, rows_of)


def supervision_compared(studies: Mapping[str, StoredStudy]) -> str:
    """Return deaths and reward against the same games under nobody and under chance."""

    def rows_of(found: Mapping[str, Any]) -> Iterator[list[str]]:
        played = games_of(found)
        for strategy in [name for name in played if name != "nobody"]:
            row = [_label(strategy, found), str(len(played[strategy]))]
            for what in WHATS:
                for other in ("nobody", "random"):
                    both = differences(played, strategy, other, what)
                    row.append("–" if strategy == other else _with_interval(both))
            yield row

    header = ["games", "deaths, against nobody", "against chance",
              "reward, against nobody", "against chance"]  # fmt: skip
    return _by_agent(studies, header, rows_of)


def differences(
    played: Mapping[str, Mapping[int, Any]], strategy: str, other: str, what: str
) -> list[float]:
    """Compare two strategies per 1,000 decisions, in the games that both played."""
    ours, theirs = played[strategy], played.get(other, {})
    return [_rate(ours[game], what) - _rate(theirs[game], what) for game in ours if game in theirs]


def worth_of_a_look(studies: Mapping[str, StoredStudy]) -> str:
    """Return what acting in one chosen decision is worth, in the unsupervised games."""

    def rows_of(found: Mapping[str, Any]) -> Iterator[list[str]]:
        pilots = [one["pilot"] for one in found["played"] if one["strategy"] == "nobody"]
        games = {name: [np.array(pilot[name]) for pilot in pilots] for name in pilots[0]}
        for strategy in ("random", "margin" if found["alike"] else "proxy", "criticality", "gain"):
            row = [_label(strategy, found), str(sum(map(len, games["gain"])))]
            for what in ("gain", "criticality"):
                by = games.get("proxy" if strategy == "margin" else strategy)
                row.append(_worth(games[what], by, found["plan"]["budget"]))
            yield row

    header = ["of decisions", "gained over its own action", "kept from a random one"]
    return _by_agent(studies, header, rows_of)


def _by_agent(
    studies: Mapping[str, StoredStudy],
    header: list[str],
    rows_of: Callable[[Mapping[str, Any]], Iterable[list[str]]],
) -> str:
    """Return a table of what was played with each agent, one row for each strategy."""
    rows = []
    for agent in CAPTURED:
        found = found_of(studies, agent)
        missing = [[MISSING] * (len(header) + 1)]
        rows += [[agent, *row] for row in (missing if found is None else rows_of(found))]
    return markdown(["agent", "who chooses", *header], rows)


def _worth(values: Sequence[Floats], by: Sequence[Floats] | None, share: float) -> str:
    """Return the mean of the values over the highest share of decisions, [games][decisions]."""

    def mean(chosen: Sequence[int]) -> float:
        drawn = np.concatenate([values[game] for game in chosen])
        if by is None:
            return float(drawn.mean())
        order = np.argsort(-np.concatenate([by[game] for game in chosen]), kind="stable")
        return float(drawn[order[: round(share * len(order))]].mean())

    rng = np.random.default_rng(0)
    every = range(len(values))
    means = [mean(rng.integers(len(values), size=len(values)).tolist()) for _ in range(1000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{mean(every):.2f} ({low:.2f} … {high:.2f})"


def found_of(studies: Mapping[str, StoredStudy], agent: str) -> dict[str, Any] | None:
    """Return what was played with an agent, if it was."""
    needed = ("plan", "alike", "played")
    return studies[agent].beside(RESULT, *needed) if agent in studies else None


def _label(strategy: str, found: Mapping[str, Any]) -> str:
    return ALIKE if strategy == "margin" and found["alike"] else WHO[strategy]


def games_of(found: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Return strategy → game → what was played, without strategies that played nothing."""
    by_strategy: dict[str, dict[int, Any]] = {name: {} for name in STRATEGIES}
    for one in found["played"]:
        by_strategy[one["strategy"]][one["game"]] = one
    return {strategy: games for strategy, games in by_strategy.items() if games}


def _rate(one: Mapping[str, Any], what: str) -> float:
    return float(1000 * one[what] / one["decisions"])


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over games and its 95 % t interval."""
    each = np.array(values)
    reach = student_quantile(0.95, len(each)) * each.std(ddof=1) / np.sqrt(len(each))
    return float(each.mean()), float(each.mean() - reach), float(each.mean() + reach)


def _with_interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return MISSING
    mean, low, high = interval(values)
    return f"{mean:+.2f} ({low:+.2f} … {high:+.2f})"
