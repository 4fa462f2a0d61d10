"""What supervise.py found, as a table with bootstrap bands over games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paper_values import CAPTURED
from stored import StoredStudy
from supervise import RESULT, STRATEGIES
from tables import MISSING, markdown

from safemargin.records import Floats

WHO = {
    "nobody": "nobody",
    "random": "chance",
    "proxy": "the highest proxies",
    "margin": "the lowest margins (ζ = 0.5)",
    "criticality": "the highest true criticality",
    "gain": "the most to gain",
}
ALIKE = "the lowest margins (ζ = 0.5), which are the highest proxies"


def supervised(studies: Mapping[str, StoredStudy]) -> str:
    """Deaths and reward for each 1,000 decisions, by who chooses what the overseer looks at."""
    rows = []
    for agent in CAPTURED:
        found = _found(studies, agent)
        if found is None:
            rows.append([agent, *[MISSING] * 8])
            continue
        by_strategy: dict[str, dict[int, Any]] = {name: {} for name in STRATEGIES}
        for one in found["played"]:
            by_strategy[one["strategy"]][one["game"]] = one
        alone = by_strategy["nobody"]
        for strategy, games in by_strategy.items():
            if not games:
                continue
            decisions = sum(one["decisions"] for one in games.values())
            row = [
                agent,
                _label(strategy, found),
                str(len(games)),
                f"{sum(one['looked_at'] for one in games.values()) / decisions:.1%}",
                f"{sum(one['overruled'] for one in games.values()) / decisions:.1%}",
            ]
            for what in ("deaths", "reward"):
                each = {number: _rate(one, what) for number, one in games.items()}
                row.append(_with_band(list(each.values()), ".2f"))
                both = [
                    each[number] - _rate(alone[number], what) for number in each if number in alone
                ]
                row.append("–" if strategy == "nobody" else _with_band(both, "+.2f"))
            rows.append(row)
    header = ["agent", "who chooses", "games", "looked at", "overruled",
              "deaths per 1,000 decisions", "against nobody",
              "reward per 1,000 decisions", "against nobody"]  # fmt: skip
    return markdown(header, rows)


def worth_of_a_look(studies: Mapping[str, StoredStudy]) -> str:
    """What acting in one chosen decision is worth, at some decisions of the unsupervised games."""
    rows = []
    for agent in CAPTURED:
        found = _found(studies, agent)
        if found is None:
            rows.append([agent, *[MISSING] * 4])
            continue
        pilots = [one["pilot"] for one in found["played"] if one["strategy"] == "nobody"]
        games = {name: [np.array(pilot[name]) for pilot in pilots] for name in pilots[0]}
        for strategy in ("random", "margin" if found["alike"] else "proxy", "criticality", "gain"):
            row = [agent, _label(strategy, found), str(sum(map(len, games["gain"])))]
            for what in ("gain", "criticality"):
                by = games.get("proxy" if strategy == "margin" else strategy)
                row.append(_worth(games[what], by, found["plan"]["budget"]))
            rows.append(row)
    header = ["agent", "who chooses", "of decisions",
              "own mistakes: reward gained", "random mistakes: reward kept"]  # fmt: skip
    return markdown(header, rows)


def _worth(values: Sequence[Floats], by: Sequence[Floats] | None, share: float) -> str:
    """The mean of the values in the share of decisions that stand highest, [games][decisions]."""

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


def _found(studies: Mapping[str, StoredStudy], agent: str) -> dict[str, Any] | None:
    needed = ("plan", "alike", "played")
    return studies[agent].beside(RESULT, *needed) if agent in studies else None


def _label(strategy: str, found: Mapping[str, Any]) -> str:
    return ALIKE if strategy == "margin" and found["alike"] else WHO[strategy]


def _rate(one: Mapping[str, Any], what: str) -> float:
    return float(1000 * one[what] / one["decisions"])


def _with_band(values: Sequence[float], digits: str) -> str:
    """The mean over games, with a 95 % bootstrap band."""
    if not values:
        return MISSING
    rng = np.random.default_rng(0)
    each = np.array(values)
    means = each[rng.integers(len(each), size=(2000, len(each)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{each.mean():{digits}} ({low:{digits}} … {high:{digits}})"
