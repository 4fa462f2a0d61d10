"""What agents can afford when mistakes are not random: keeps what studies of other mistakes found.

    safemargin collect atari:pong zoo:pong-a3c -o runs/pong-a3c-stuck --perturb stuck \\
        --opening 400 --natural 250 --spread 250
    python reproduction/faults.py pong-a3c runs/pong-a3c-stuck

    safemargin collect atari:pong zoo:pong-apex -o runs/worst --perturb worst --n 1,2,3 \\
        --max-enumerated 216 --exclude-last 32 --opening 400 --natural 17 --spread 15
    python reproduction/faults.py pong-apex runs/worst

A study of several mistakes is kept once for each of them, one of all sequences in a table of its
own. Nothing is simulated. The tables are filled in by `make reproduce`; random actions of the Atari
agents come from the stored studies.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stored import StoredStudy, read_json
from tables import MISSING, markdown

import safemargin as sm
from safemargin.core.files import written_whole
from safemargin.core.measured import mistakes_in_words, without_folder
from safemargin.core.records import Tuples
from safemargin.criticality.stopping import student_quantile
from safemargin.monitor.attack import Attacked, AttackRow
from safemargin.validation.comparison import compare_tuples

HERE = Path(__file__).parent
RESULT = HERE / "faults.json"
STARTS = HERE / "critical_starts.json"
ATTACKED, FIDELITY = HERE / "attacked", HERE / "fidelity"
TOLERANCE, CONFIDENCE = 0.5, 0.95
SHOWN = (1, 8, 32)
EXACT = (1, 2, 3)
"""Numbers of mistakes for which every sequence was tried."""
SHARED = (1, 2)
"""Those of them that random actions were measured for, too."""


def summary(tuples: Tuples, *, perturb: str) -> dict[str, Any]:
    """Return what natural moments lose and afford, over plays, and the margins of unseen ones."""
    natural = tuples.phases == "natural"
    losses = tuples.criticalities[natural]
    highest = np.maximum.accumulate(losses, axis=1)
    steps = np.array([0, *tuples.n_values])
    affordable = steps[(highest <= TOLERANCE).sum(axis=1)]
    compared = compare_tuples(
        [tuples], methods=["calibrated"], confidence=CONFIDENCE, tolerances=[TOLERANCE]
    )
    return {
        "perturb": perturb,
        "natural": int(natural.sum()),
        "spread": int((~natural).sum()),
        "losses": {
            str(n): _band(losses[:, tuples.n_values.index(n)], tuples.groups, natural)
            for n in SHOWN
            if n in tuples.n_values
        },
        "affordable": _band(affordable.astype(float), tuples.groups, natural),
        "margin": compared.candidates[0].mean_margins[0],
    }


def worst_summary(worst: Tuples, random: Tuples) -> dict[str, Any]:
    """Return what the worst sequence and random actions lose at the same natural moments."""
    natural = worst.phases == "natural"
    found: dict[str, Any] = {"natural": int(natural.sum())}
    for name, tuples in (("worst", worst), ("random", random)):
        losses = tuples.criticalities[natural]
        held = {n: losses[:, tuples.n_values.index(n)] for n in EXACT if n in tuples.n_values}
        highest = np.maximum.accumulate([held[n] for n in SHARED], axis=0)
        affordable = np.array([0, *SHARED])[(highest <= TOLERANCE).sum(axis=0)].astype(float)
        found[name] = {
            "losses": {str(n): _band(values, tuples.groups, natural) for n, values in held.items()},
            "affordable": _band(affordable, tuples.groups, natural),
        }
    return found


def _band(values: Any, groups: Any, natural: Any) -> list[float]:
    """Return the mean over plays and Student's half-width."""
    chosen = np.arange(len(values)) if groups is None else groups[natural]
    means = np.array([values[chosen == one].mean() for one in np.unique(chosen)])
    half = student_quantile(0.95, len(means)) * means.std(ddof=1) / math.sqrt(len(means))
    return [float(means.mean()), float(half)]


def _at(tuples: Tuples, others: Tuples) -> Tuples:
    """Return the moments that other tuples hold, too."""
    wanted = set(zip(others.keys, others.steps.tolist(), strict=True))
    places = zip(tuples.keys, tuples.steps.tolist(), strict=True)
    rows = np.array([place in wanted for place in places])
    arrays = ("phases", "indices", "lives", "steps", "proxies", "criticalities", "half_widths",
              "trials", "groups")  # fmt: skip
    return replace(tuples, **{name: getattr(tuples, name)[rows] for name in arrays})


def faults(studies: Mapping[str, StoredStudy]) -> str:
    """Losses, affordable mistakes and margins of each agent, by the mistake."""
    kept = read_json(RESULT, "agents")["agents"] if RESULT.exists() else {}
    rows = []
    for agent, found in kept.items():
        for one in found:
            rows.append(
                [
                    agent,
                    mistakes_in_words(one["perturb"]),
                    f"{one['natural']} + {one['spread']}",
                    *(
                        _shown(one["losses"][str(n)]) if str(n) in one["losses"] else MISSING
                        for n in SHOWN
                    ),
                    _shown(one["affordable"]),
                    f"{one['margin']:.1f}",
                ]
            )
    header = ["agent", "mistakes", "moments", *(f"loss, n = {n}" for n in SHOWN),
              "affordable", "mean margin"]  # fmt: skip
    return markdown(header, rows)


def worst_sequences(studies: Mapping[str, StoredStudy]) -> str:
    """Losses by the worst of all sequences beside random ones, at the same natural moments."""
    kept = read_json(RESULT, "agents").get("worst", {}) if RESULT.exists() else {}
    rows = []
    for agent, found in kept.items():
        for name, words in (("random", "random actions"), ("worst", "the worst of all sequences")):
            one = found[name]
            losses = [one["losses"].get(str(n)) for n in EXACT]
            cells = ["–" if band is None else _shown(band) for band in losses]
            rows.append([agent, words, str(found["natural"]), *cells, _shown(one["affordable"])])
    header = ["agent", "mistakes", "natural moments", *(f"loss, n = {n}" for n in EXACT),
              f"affordable, of {SHARED[-1]}"]  # fmt: skip
    return markdown(header, rows)


def attacks() -> dict[str, Attacked]:
    """Return what `safemargin attack --json` printed, by agent and attack."""
    found = {}
    for file in sorted(ATTACKED.glob("*.json")):
        about = read_json(file, "rows", "words", "games", "score", "steps")
        rows = tuple(AttackRow(**row) for row in about["rows"])
        found[file.stem] = Attacked(**{**about, "rows": rows})
    return found


def attacked(studies: Mapping[str, StoredStudy]) -> str:
    """What attacks cost, by what times them, as `safemargin attack --json` printed it."""
    rows = []
    for name, found in attacks().items():
        for row in found.rows:
            rows.append(
                [
                    name.split(".")[0],
                    f"{found.words}, {found.games} games",
                    f"{row.budget:.0%}",
                    row.ranking,
                    "–" if row.attacks is None else f"{row.attacks:.1f}",
                    _maybe(row.loss, row.half_width),
                    _maybe(row.measured, row.measured_half_width),
                ]
            )
    header = ["agent", "attack", "budget", "steps chosen by", "attacks a game", "loss of a game",
              "measured loss"]  # fmt: skip
    return markdown(header, rows)


def faithful(studies: Mapping[str, StoredStudy]) -> str:
    """What mistakes cost where rankings place them, as `safemargin fidelity --json` printed it."""
    rows = []
    for file in sorted(FIDELITY.glob("*.json")):
        found = read_json(file, "rows", "n", "mistakes", "plays")
        for row in found["rows"]:
            rows.append(
                [
                    file.stem.split(".")[0],
                    f"{found['n']} {found['mistakes']}",
                    str(found["plays"]),
                    row["ranking"],
                    _maybe(row["loss"], row["half_width"]),
                    _maybe(row["gain"], row["gain_half_width"]),
                ]
            )
    return markdown(["agent", "mistakes", "plays", "ranking", "loss", "gain over lot"], rows)


def critical_starts(studies: Mapping[str, StoredStudy]) -> str:
    """How long episodes last before and after training on, by where training began."""
    about = read_json(STARTS, "rows", "first", "more") if STARTS.exists() else {"rows": []}
    rows = []
    for name, words in (
        ("before", f"before, after {about.get('first', 0):,} steps"),
        ("ordinary", f"{about.get('more', 0):,} steps more, from ordinary starts"),
        (
            "critical",
            f"{about.get('more', 0):,} more, every other episode from a critical one",
        ),
    ):
        cells = [
            _shown(_student([row[column] for row in about["rows"]]))
            for column in (name, f"{name} critical")
            if about["rows"]
        ]
        rows.append([words, *(cells or [MISSING] * 2)])
    seeds = len(about["rows"])
    header = [f"training ({seeds} seeds)", "ordinary starts", "critical starts"]
    return markdown(header, rows)


def _student(values: list[float]) -> list[float]:
    half = student_quantile(0.95, len(values)) * np.std(values, ddof=1) / math.sqrt(len(values))
    return [float(np.mean(values)), float(half)]


def _maybe(mean: float | None, half: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.3g}" + ("" if half is None else f" ± {half:.2g}")


def _shown(band: list[float]) -> str:
    digits = 1 if band[0] >= 10 else 2
    return f"{band[0]:.{digits}f} ± {band[1]:.{digits}f}"


def main() -> None:
    """Read the command line and keep the summaries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("studies", type=Path, nargs="+", metavar="STUDY")
    options = parser.parse_args()
    kept = read_json(RESULT, "agents") if RESULT.exists() else {}
    agents, worst = kept.get("agents", {}), kept.get("worst", {})
    found = {one["perturb"]: one for one in agents.get(options.agent, [])}
    stored = StoredStudy(HERE / "studies" / options.agent)
    for folder in options.studies:
        with sm.Study.open(folder) as first:
            pairs = [pair for pair in first.measured if pair[1] == "reward"]
        for perturb, signal in pairs:
            with sm.Study.open(folder, perturb=perturb, signal=signal) as study:
                name, tuples = without_folder(perturb), study.tuples()
            if name == "worst":
                worst[options.agent] = worst_summary(tuples, _at(stored.tuples(), tuples))
                print(options.agent, worst[options.agent])
                continue
            found[name] = summary(tuples, perturb=name)
            print(options.agent, found[name])
            if stored.folder.exists():  # random actions at the same moments, measured before
                found["random"] = summary(_at(stored.tuples(), tuples), perturb="random")
                print(options.agent, found["random"])
    if found:
        agents[options.agent] = [
            found[name] for name in sorted(found, key=lambda each: each != "random")
        ]
    with written_whole(RESULT) as path:
        about = {"agents": agents, "worst": worst}
        path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
