"""What supervise.py found, as a table with bootstrap bands over games."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paper_values import CAPTURED
from stored import StoredStudy
from supervise import RESULT, STRATEGIES
from tables import MISSING, markdown

WHO = {
    "nobody": "nobody supervises",
    "random": "at random",
    "proxy": "the highest proxies",
    "margin": "the lowest margins (ζ = 0.5)",
    "criticality": "the highest true criticality",
}


def supervised(studies: Mapping[str, StoredStudy]) -> str:
    """Deaths and reward for each 1,000 decisions, by who is looked at."""
    rows = []
    for agent in CAPTURED:
        found = studies[agent].beside(RESULT, "played") if agent in studies else None
        if found is None:
            rows.append([agent, *[MISSING] * 6])
            continue
        for strategy in STRATEGIES:
            games = [one for one in found["played"] if one["strategy"] == strategy]
            if not games:
                continue
            decisions = sum(one["decisions"] for one in games)
            rows.append(
                [
                    agent,
                    WHO[strategy],
                    str(len(games)),
                    f"{sum(one['looked_at'] for one in games) / decisions:.1%}",
                    f"{sum(one['overruled'] for one in games) / decisions:.1%}",
                    _rate([one["deaths"] for one in games], decisions),
                    _rate([one["reward"] for one in games], decisions),
                ]
            )
    header = ["agent", "looked at", "games", "decisions looked at", "overruled",
              "deaths per 1,000 decisions", "reward per 1,000 decisions"]  # fmt: skip
    return markdown(header, rows)


def _rate(values: list[float], decisions: int) -> str:
    """The mean over games for each 1,000 decisions, with a 95 % bootstrap band."""
    rng = np.random.default_rng(0)
    each = np.array(values) * 1000 * len(values) / decisions
    means = each[rng.integers(len(each), size=(2000, len(each)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{each.mean():.2f} ({low:.2f} – {high:.2f})"
