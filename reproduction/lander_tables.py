"""The results of supervise_lander.py as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from stored import StoredStudy, read_json
from supervise_lander import RESULT, SHARES, STRATEGIES
from supervision import interval
from tables import MISSING, markdown

WHO = {
    "nobody": "nobody",
    "random": "chance",
    "proxy": "the highest proxies, so the lowest margins",
    "stakes": "learned stakes",
    "regret": "learned regret",
    "gain": "true regret",
    "always": "every decision",
}

Games = dict[tuple[float, str], dict[int, Mapping[str, Any]]]


def flights() -> Games:
    """Return budget and strategy → game → what was played, in the order of STRATEGIES."""
    played: Games = {}
    for one in read_json(RESULT, "played")["played"] if RESULT.exists() else []:
        played.setdefault((one["budget"], one["strategy"]), {})[one["game"]] = one
    return dict(sorted(played.items(), key=lambda item: (item[0][0], STRATEGIES.index(item[0][1]))))


def lander_supervised(studies: Mapping[str, StoredStudy]) -> str:
    """Looks, returns and crashes, by who chooses what the overseer looks at."""
    rows = []
    for (budget, name), games in flights().items():
        every = list(games.values())
        decisions = sum(one["decisions"] for one in every)
        rows.append(
            [
                f"{budget:.0%}",
                WHO[name],
                str(len(every)),
                f"{np.mean([one['looked_at'] for one in every]):.1f}",
                f"{sum(one['overruled'] for one in every) / decisions:.1%}",
                f"{np.mean([one['reward'] for one in every]):.0f}",
                f"{sum(one['crashed'] for one in every)}",
            ]
        )
    header = ["budget", "who chooses", "games", "looks of a game", "overruled",
              "return of a game", "crashes"]  # fmt: skip
    return markdown(header, rows)


def lander_compared(studies: Mapping[str, StoredStudy]) -> str:
    """Returns and crashes against the same games under nobody and under chance."""
    rows = []
    played = flights()
    for (budget, name), games in played.items():
        if name in SHARES:
            continue
        row = [f"{budget:.0%}", WHO[name], str(len(games))]
        for what, form in (("reward", "+.0f"), ("crashed", "+.2f")):
            for other in ((0.0, "nobody"), (budget, "random")):
                if other[1] == name:
                    row.append("–")
                    continue
                theirs = played.get(other, {})
                both = [
                    float(one[what]) - float(theirs[game][what])
                    for game, one in games.items()
                    if game in theirs
                ]
                row.append(_with_interval(both, form))
        rows.append(row)
    header = ["budget", "who chooses", "games", "return, against nobody", "against chance",
              "crashes of a game, against nobody", "against chance"]  # fmt: skip
    return markdown(header, rows)


def _with_interval(values: list[float], form: str) -> str:
    if len(values) < 2:
        return MISSING
    return "{} ({} … {})".format(*(format(each, form) for each in interval(values)))


def lander_prices(studies: Mapping[str, StoredStudy]) -> str:
    """Returns net of what looks cost, in the games that every strategy played.

    Prices go up to the one at which looking at every decision is worth no more than nobody. The net
    return is linear in the price, so its mean over these prices is that at half of the highest.
    """
    played = flights()
    if not {(0.0, "nobody"), (1.0, "always")} <= played.keys():
        return markdown(["who chooses", "games"], [])
    common = sorted(set.intersection(*(set(games) for games in played.values())))

    def mean(of: tuple[float, str], what: str) -> float:
        return float(np.mean([played[of][game][what] for game in common]))

    gained = mean((1.0, "always"), "reward") - mean((0.0, "nobody"), "reward")
    highest = gained / mean((1.0, "always"), "looked_at")
    prices = [share * highest for share in (0.0, 0.5, 1.0)]
    rows = []
    for of in played:
        looks = mean(of, "looked_at")
        net = [f"{mean(of, 'reward') - price * looks:.0f}" for price in prices]
        rows.append([f"{of[0]:.0%}", WHO[of[1]], str(len(common)), f"{looks:.1f}", *net])
    header = ["budget", "who chooses", "games", "looks of a game"]
    header += [f"net return at {price:.2f} a look" for price in prices]
    return markdown(header, rows)
