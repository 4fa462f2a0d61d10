"""Where the agents themselves are wrong: what rankings capture, and how much of regret is luck.

    python reproduction/regret.py STUDY        # the moments of a LunarLander study → lander.json

The tables on the page are made from lander.json, from cheap labels (labelled.py), or where an agent
has none from the decisions of the unsupervised games (supervise.py), and from decisions followed
under jitters (repeatable.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stored import StoredStudy, read_json
from supervise import RESULT as SUPERVISION
from tables import MISSING, markdown

import safemargin as sm
from safemargin.core.records import Floats
from safemargin.criticality.stopping import student_quantile
from safemargin.margins.learned.probe import RANKINGS, is_learned
from safemargin.policies.value_signals import SIGNALS
from safemargin.study.grouping import group_labels
from safemargin.study.regrets import read_regrets
from safemargin.study.tuples import read_tuples
from safemargin.validation.capture import SHARES, captured_with_bands

HERE = Path(__file__).parent
LANDER = HERE / "lander.json"
REPEATABLE = "repeatable.json"
DECISIONS = "decisions.json"  # from labelled.py
AGENTS = ("pong-apex", "pong-a3c", "beamrider-apex", "beamrider-a3c")
RANKING_TEXTS = {
    "lot": "chance",
    "proxy": "the paper's proxy",
    "criticality": "true criticality",
    "stakes": "true stakes",
    "regret": "regret itself",
    "learned-regret": "learned regret",
    "learned-stakes": "learned stakes",
    "td_residual": "temporal-difference residual",
    "policy_value": "sure while the value falls",
}

Columns = dict[str, Floats]


def gather(folder: Path, target: Path) -> None:
    """Write what a study's natural moments hold: regret, and every ranking's value there."""
    with sm.Study.open(folder) as study:
        found = read_regrets(study.store)
        natural = found.natural
        keys = [key for key, chosen in zip(found.keys, natural, strict=True) if chosen]
        steps = found.steps[natural].tolist()
        columns: dict[str, Any] = {
            "group": group_labels(study.store, keys),
            "criticality": found.criticality[natural],
            "regret": found.regret[natural],
        }
        episodes = [study.store.episode(key) for key in keys]
        for name in (*study.proxies, *SIGNALS, *RANKINGS.values()):
            if is_learned(name):
                if study.store.meta(name) is None:
                    continue
                known = read_tuples(study.store, study.settings, name)
                at = dict(zip(known.keys, known.proxies.tolist(), strict=True))
                values = np.array([at[key] for key in keys])
            elif name not in episodes[0].proxies:
                continue
            else:
                values = np.array(
                    [
                        episode.proxies[name][step]
                        for episode, step in zip(episodes, steps, strict=True)
                    ]
                )
            columns["proxy" if name == study.default_proxy else name] = values
        content = {
            "environment": study.environment["name"].rsplit("/", 1)[-1],  # without the folder
            "settings": {"gamma": study.settings.gamma, "horizon": study.settings.horizon},
            "columns": {name: [float(f"{value:.6g}") for value in values.tolist()]
                        for name, values in columns.items()},
        }  # fmt: skip
    target.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"{len(keys)} moments in {target}")


def captured_regret(studies: Mapping[str, StoredStudy]) -> str:
    """The share of all regret in the decisions that each ranking puts first, with bands."""
    rows = []
    for agent, columns in _decisions(studies):
        regret = columns["regret"]
        rankings = {"lot": np.zeros(len(regret)), **columns}
        rankings["stakes"] = columns["criticality"] + regret
        for name, text in RANKING_TEXTS.items():
            if name not in rankings or regret.sum() <= 0:
                continue
            groups = columns["group"].astype(np.int64)
            found = captured_with_bands(rankings[name], regret, groups)
            cells = [f"{each.captured:.2f} ({each.low:.2f} … {each.high:.2f})" for each in found]
            rows.append([agent, f"{len(regret):,}", text, *cells])
    header = ["agent", "decisions", "ranking", *(f"top {100 * share:g} %" for share in SHARES)]
    return markdown(header, rows or [[MISSING] * len(header)])


def _decisions(studies: Mapping[str, StoredStudy]) -> Iterator[tuple[str, Columns]]:
    """Yield every agent with what is known of some of its decisions."""
    for agent in AGENTS:
        labelled = studies[agent].beside(DECISIONS, "columns") if agent in studies else None
        if labelled is not None:
            yield agent, {name: np.array(each) for name, each in labelled["columns"].items()}
            continue
        kept = studies[agent].beside(SUPERVISION, "played") if agent in studies else None
        if kept is not None:
            pilots = [one for one in kept["played"] if one["strategy"] == "nobody"]
            columns = {
                name: np.concatenate([one["pilot"][of] for one in pilots])
                for name, of in (
                    ("criticality", "criticality"),
                    ("regret", "gain"),
                    ("proxy", "proxy"),
                )
            }
            sizes = [len(one["pilot"]["gain"]) for one in pilots]
            columns["group"] = np.repeat([one["game"] for one in pilots], sizes).astype(float)
            yield agent, columns
            continue
        found = studies[agent].beside(REPEATABLE, "decisions") if agent in studies else None
        if found is not None:
            names = {"criticality": "criticality", "regret": "regret", "proxy": "proxy"}
            yield (
                agent,
                {name: _column(found, of) for name, of in names.items()}
                | {"group": _column(found, "game")},
            )
    if LANDER.exists():
        columns = read_json(LANDER, "columns")["columns"]
        yield "LunarLander PPO", {name: np.array(values) for name, values in columns.items()}


def _column(found: Mapping[str, Any], name: str) -> Floats:
    return np.array([one[name] for one in found["decisions"]], dtype=np.float64)


def repeatable_regret(studies: Mapping[str, StoredStudy]) -> str:
    """How much of regret survives slips, and how much of it is luck."""
    rows = []
    for agent in AGENTS:
        found = studies[agent].beside(REPEATABLE, "decisions") if agent in studies else None
        if found is None:
            continue
        regret, judged, chosen = (_column(found, name) for name in ("regret", "judged", "chosen"))
        games = _column(found, "game").astype(np.int64)
        weights = _weights(regret, chosen)
        plain, seen = _mean(regret, games), _mean(judged, games)
        again = _mean(np.where(np.isnan(chosen), 0.0, chosen) * weights, games)
        rows.append(
            [
                agent,
                f"{len(regret):,} of {len(np.unique(games))}",
                f"{100 * (regret > 0.01).mean():.0f} %",
                *(_with_reach(*each) for each in (plain, seen, again)),
                f"{100 * seen[0] / plain[0]:.0f} %" if plain[0] > 0 else MISSING,
            ]
        )
    header = ["agent", "decisions of games", "regret above 0.01", "regret, luck included",
              "its choice, judged under slips", "chosen and judged under slips",
              "repeatable share"]  # fmt: skip
    return markdown(header, rows)


def _weights(regret: Floats, chosen: Floats) -> Floats:
    """Return how many decisions each one that was followed under jitters stands for, [decisions].

    All with regret are followed, and some of those without.
    """
    wrong, followed = regret > 0, ~np.isnan(chosen)
    weights = np.where(followed, 1.0, 0.0)
    others = ~wrong & followed
    weights[others] = (~wrong).sum() / max(int(others.sum()), 1)
    return weights


def _mean(values: Floats, games: np.ndarray) -> tuple[float, float]:
    """Return the mean of decisions, and the reach of its 95 % t interval over games."""
    by_game = np.array([values[games == game].mean() for game in np.unique(games)])
    if len(by_game) < 2:
        return float(values.mean()), float("nan")
    reach = student_quantile(0.95, len(by_game)) * by_game.std(ddof=1) / np.sqrt(len(by_game))
    return float(by_game.mean()), float(reach)


def _with_reach(mean: float, reach: float) -> str:
    return f"{mean:.3f} ± {reach:.3f}"


def main() -> None:
    """Read the command line and gather."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study of LunarLander")
    options = parser.parse_args()
    gather(options.study, LANDER)


if __name__ == "__main__":
    main()
