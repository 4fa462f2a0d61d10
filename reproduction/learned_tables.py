"""The results of learned.py and supervise_ranked.py as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from supervise_ranked import STRATEGIES
from supervision import interval
from tables import AGENTS, MISSING, Studies, markdown

from safemargin.validation.heldout import clopper_pearson

LEARNED_FILE = "learned.json"
RANKED = (
    ("pong-a3c", "ranked-weaker.json", "pong-a3c, weaker"),
    ("beamrider-apex", "ranked.json", "beamrider-apex"),
)
"""Agent, file and name of what supervise_ranked.py played."""
WHO = {
    "nobody": "nobody",
    "random": "chance",
    "proxy": "the highest proxies",
    "stakes": "learned stakes",
    "regret": "learned regret",
    "gain": "true regret",
}


def learned(studies: Studies) -> str:
    """Return mean margins of the paper's and of a learned proxy under both promises."""
    rows = []
    for agent in AGENTS:
        found = studies[agent].beside(LEARNED_FILE, "results") if agent in studies else None
        if found is None:
            rows.append([agent, *[MISSING] * 6])
            continue
        for place, tolerance in enumerate(found["tolerances"]):
            perfect = found["perfect"][place]
            cells = []
            for each in found["results"].values():
                row = each[place]
                share = row["failed"] / max(row["granted"], 1)
                part = f"{row['mean_margin'] / perfect:.0%}"
                cells.append(f"{row['mean_margin']:.1f} = {part} ({share:.1%})")
            rows.append([agent, f"{tolerance:g}", *cells, f"{perfect:.1f}"])
    promises = [
        f"{proxy}, {promise}"
        for proxy in ("paper's proxy", "learned")
        for promise in ("bound", "margin itself")
    ]
    return markdown(["agent", "ζ", *promises, "perfect knowledge"], rows)


def failing_parts(studies: Studies) -> str:
    """Return how many margins fail of each granted value and in each fifth of the proxy's range.

    In brackets: the lower end of the exact 95 % interval of their share.
    """
    rows = []
    for agent in AGENTS:
        found = studies[agent].beside(LEARNED_FILE, "results") if agent in studies else None
        if found is None:
            continue
        for place, tolerance in enumerate(found["tolerances"]):
            row = found["results"]["learned, margin"][place]
            parts = [*row["by_value"].values(), *row["by_fifth"]]
            rows.append([agent, f"{tolerance:g}", *(_with_limit(*part) for part in parts)])
    values = [f"n = {n}" for n in (1, 2, 4, 8, 16, 32)]
    fifths = [f"fifth {part}" for part in range(1, 6)]
    return markdown(["agent", "ζ", *values, *fifths], rows or [[MISSING] * 13])


def _with_limit(failed: int, granted: int) -> str:
    if not granted:
        return "–"
    return f"{failed} of {granted} ({clopper_pearson(failed, granted).low:.1%})"


def ranked(studies: Studies) -> str:
    """Looks and reward by what chooses the decisions, and differences in the same games."""
    rows = []
    for name, played in _played(studies):
        for strategy, games in played.items():
            decisions = sum(one["decisions"] for one in games.values())
            looks = sum(one["looked_at"] for one in games.values()) / decisions
            overruled = sum(one["overruled"] for one in games.values()) / decisions
            rates = {what: [_rate(one, what) for one in games.values()] for what in WHATS}
            row = [name, WHO[strategy], str(len(games)), f"{looks:.1%}", f"{overruled:.2%}"]
            row += [f"{np.mean(rates['reward']):.1f}"]
            for what in WHATS:
                for other in ("nobody", "random"):
                    told = strategy != other and not (what == "deaths" and "pong" in name)
                    row.append(_compared(played, strategy, other, what) if told else "–")
            rows.append(row)
    header = ["agent", "who chooses", "games", "looked at", "overruled", "reward",
              "reward, against nobody", "against chance", "lives lost, against nobody",
              "against chance"]  # fmt: skip
    return markdown(header, rows or [[MISSING] * len(header)])


WHATS = ("reward", "deaths")
Games = dict[str, dict[int, Mapping[str, Any]]]


def _played(studies: Studies) -> Iterator[tuple[str, Games]]:
    for agent, file, name in RANKED:
        found = studies[agent].beside(file, "played") if agent in studies else None
        if found is None:
            continue
        played: Games = {strategy: {} for strategy in STRATEGIES}
        for one in found["played"]:
            played[one["strategy"]][one["game"]] = one
        yield name, {strategy: games for strategy, games in played.items() if games}


def _compared(played: Games, strategy: str, other: str, what: str) -> str:
    both = [
        _rate(one, what) - _rate(played[other][game], what)
        for game, one in played[strategy].items()
        if game in played.get(other, {})
    ]
    if len(both) < 2:
        return MISSING
    mean, low, high = interval(both)
    return f"{mean:+.2f} ({low:+.2f} … {high:+.2f})"


def _rate(one: Mapping[str, Any], what: str) -> float:
    return float(1000 * one[what] / one["decisions"])
