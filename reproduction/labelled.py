"""Learn from cheap labels (labels.py): lessons for margins, and rankings by regret and stakes.

    python reproduction/labelled.py beamrider-a3c --labels labels
    python reproduction/labelled.py beamrider-a3c --labels labels --rankings ranks

Full labels go into studies/AGENT/lessons.npz, marked with the study's moments that they are near
to. Rankings are cross-fitted by game over the labels of undisturbed games: a model has seen neither
the game that it judges nor anything within a horizon of its moments on the same play. Of games that
have run into the same play, the first one's moments alone are judged. Which model and target serve
best is chosen on the other games. Results go to studies/AGENT/decisions.json. With --rankings the
models of regret and stakes that are trained on all labels are written there, and nothing else is.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from learned import LESSONS_FILE, STUDIES, Stored, pack, unpack
from live import in_a_sentence
from stored import Refused, StoredStudy

from safemargin.core.records import Floats
from safemargin.margins import Ranking
from safemargin.margins.learned.choosing import make_probe
from safemargin.margins.learned.crossfit import (
    CrossFit,
    Lessons,
    available_recipes,
    cross_fit,
    train,
)
from safemargin.margins.learned.models import Recipe
from safemargin.policies import load_policy
from safemargin.policies.base import Policy, ScoreKind
from safemargin.policies.features import probe_inputs
from safemargin.policies.proxies import PROXIES, proxy_values
from safemargin.study.kinship import kin_by_hashes, near_pairs
from safemargin.validation.capture import SHARES, captured

FILE = "decisions.json"


@dataclass(frozen=True, eq=False)
class Labels:
    """The moments of an agent's label files, and the plays that they lie on."""

    columns: dict[str, npt.NDArray[Any]]  # each [moments, …]
    hashes: list[npt.NDArray[np.uint32]]  # of each moment's life, [steps]

    @classmethod
    def read(cls, paths: list[Path]) -> Labels:
        """Read files of labels.py."""
        columns: dict[str, list[npt.NDArray[Any]]] = {}
        hashes = []
        for path in paths:
            with np.load(path) as stored:
                found = {name: stored[name] for name in stored}
            lengths = found["play"][:, 3]
            pieces = np.split(found.pop("hashes"), np.cumsum(lengths)[:-1])
            plays = dict(zip(map(tuple, found.pop("play")[:, :3].tolist()), pieces, strict=True))
            phase = found.get("phase", np.full(len(found["step"]), -1))
            keys = zip(found["game"].tolist(), phase.tolist(), found["life"].tolist(), strict=True)
            hashes += [plays[key] for key in keys]
            for name, values in found.items():
                columns.setdefault(name, []).append(values)
        if not columns:
            raise Refused("there are no labels there; make them with reproduction/labels.py")
        return cls({name: np.concatenate(parts) for name, parts in columns.items()}, hashes)

    @property
    def steps(self) -> list[int]:
        return list(self.columns["step"].tolist())


def add_lessons(stored: Stored, keys: npt.NDArray[np.int64], own: Labels, labels: Labels,
                inputs: npt.NDArray[np.float32], horizon: int) -> Stored:  # fmt: skip
    """Return the study's own lessons with the full labels after them."""
    at = {
        key: place
        for place, key in enumerate(
            zip(*(own.columns[name].tolist() for name in ("phase", "game", "life", "step")),
                strict=True)
        )
    }  # fmt: skip
    order = [at[tuple(key)] for key in keys.tolist()]
    columns, count = labels.columns, len(keys)
    full = ~np.isnan(columns["several"][:, 0, 0])
    hashes = [own.hashes[place] for place in order]
    hashes += [each for each, chosen in zip(labels.hashes, full, strict=True) if chosen]
    steps = [*keys[:, 3].tolist(), *columns["step"][full].tolist()]
    games = [("own", *key[:2]) for key in keys.tolist()]
    games += [("label", game) for game in columns["game"][full].tolist()]
    label = np.arange(len(steps)) >= count
    found = kin_by_hashes(hashes, steps, games, label, horizon)
    # The study's own groups were made from its scores; what is near to a part is near to the whole.
    groups = stored.lessons.groups[:count]
    whole: dict[int, set[int]] = {}
    for part, group in zip(found.groups[:count].tolist(), groups.tolist(), strict=True):
        whole.setdefault(part, set()).add(group)
    kin = sorted({(row, group) for row, part in found.kin.tolist() for group in whole[part]})
    returns, unperturbed = columns["several"][full].mean(axis=2), columns["own"][full, None]
    single = columns["single"][full].mean(axis=1, keepdims=True)
    losses = unperturbed - np.concatenate([single, returns], axis=1)
    more = int(full.sum())
    return Stored(
        Lessons(
            np.concatenate([stored.lessons.inputs[:count], inputs[full]]),
            np.concatenate([stored.lessons.losses[:count], losses]).round(7),
            np.concatenate([groups, np.full(more, -1)]),
            np.array(kin, np.int64).reshape(-1, 2),
        ),
        np.concatenate([stored.natural[:count], np.zeros(more, bool)]),
        np.concatenate([stored.proxy[:count], np.full(more, np.nan)]),
        stored.n_values,
    )


def to_judge(labels: Labels, horizon: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each moment's group, −1 where it is for learning alone, and what is near to which."""
    games, disturbed = labels.columns["game"], labels.columns["disturbed"]
    pairs = {
        (one, other)
        for each in near_pairs(labels.hashes, labels.steps, horizon)
        for one, other in (each, each[::-1])
        if games[one] != games[other]
    }
    near: dict[int, list[int]] = {}
    for one, other in pairs:
        near.setdefault(one, []).append(other)
    judged = np.zeros(len(games), bool)
    for game in np.unique(games[~disturbed]):
        rows = np.flatnonzero((games == game) & ~disturbed)
        judged[[row for row in rows if not judged[near.get(row, [])].any()]] = True
    names = {game: number for number, game in enumerate(np.unique(games[judged]).tolist())}
    groups = np.full(len(games), -1, np.int64)
    groups[judged] = [names[game] for game in games[judged].tolist()]
    kin = {(row, names[games[row]]) for row in np.flatnonzero(~judged) if games[row] in names}
    kin |= {(one, int(groups[other])) for one, other in pairs if groups[other] >= 0}
    return groups, np.array(sorted(kin), np.int64).reshape(-1, 2)


def rank(lessons: Lessons) -> Floats:
    """Return cross-fitted ranks, from 0 to 1, by what did best at the other games; NaN for labels.

    The models of each fold have scales of their own, so values become ranks among all before folds
    are joined.
    """
    fitted = cross_fit(lessons, recipes=ranking_recipes())
    ranks = np.full(len(lessons), np.nan)
    judged = fitted.folds >= 0
    for fold in range(fitted.folds.max() + 1):
        others, here = judged & (fitted.folds != fold), fitted.folds == fold
        values = fitted.values[best_ranking(fitted, lessons, others)]
        ranks[here] = np.searchsorted(np.sort(values[judged]), values[here]) / judged.sum()
    return ranks


def ranking_recipes() -> list[Recipe]:
    """Return the recipes that differ where there is one number to predict."""
    return [each for each in available_recipes() if each.target != "mean log size"]


def best_ranking(fitted: CrossFit, lessons: Lessons, rows: npt.NDArray[np.bool_]) -> Recipe:
    """Return the recipe whose values capture most at some moments."""
    target = lessons.losses[rows, 0]

    def worth(recipe: Recipe) -> float:
        values = fitted.values[recipe][rows]
        return float(np.mean([captured(values, target, share) for share in SHARES]))

    return max(fitted.recipes, key=worth)


def write_ranking(path: Path, target: str, lessons: Lessons, policy: Policy, hidden: int) -> None:
    """Train the best model of regret or stakes on all labels, and write it as a ranking."""
    judged = lessons.groups >= 0
    fitted = cross_fit(lessons, recipes=ranking_recipes())
    recipe = best_ranking(fitted, lessons, judged)
    probe = make_probe(
        recipe,
        train(lessons, [recipe], seed=1),
        fitted.distances[judged],
        kind=policy.kind,
        policy=policy.identity,
        hidden_width=hidden,
        labels=len(lessons),
    )
    values = fitted.values[recipe][judged]
    at = captured(values, lessons.losses[judged, 0], 0.05)
    Ranking(target, probe, np.sort(values), {"captured_at_0.05": at}).save(path)
    print(f"{path}: {recipe}, which captures {at:.2f} in 5 % of decisions of other games")


def read_labels(agent: str, folder: Path) -> Labels:
    """Read the labels of an agent, from all files of them in a folder."""
    files = sorted(folder.glob(f"{agent}-*.npz"))
    return Labels.read([each for each in files if not each.stem.endswith("-own")])


def inputs_of(labels: Labels, kind: ScoreKind) -> npt.NDArray[np.float32]:
    """Return what the agent's network made of each moment, [moments, inputs]."""
    columns = labels.columns
    return probe_inputs(kind, columns["recent"], columns["hidden"].astype(np.float32))


def write_rankings(agent: str, folder: Path, source: str, output: Path) -> None:
    """Write what ranks decisions by regret and by stakes."""
    labels, policy = read_labels(agent, folder), load_policy(source)
    groups, kin = to_judge(labels, StoredStudy(STUDIES / agent).about["horizon"])
    inputs = unpack(pack(inputs_of(labels, policy.kind)))  # as lessons are kept
    hidden = labels.columns["hidden"].shape[-1]
    single = labels.columns["single"]
    best = single.max(axis=1)
    output.mkdir(parents=True, exist_ok=True)
    for target, other in (("regret", labels.columns["own"]), ("stakes", single.mean(axis=1))):
        lessons = Lessons(inputs, (best - other)[:, None], groups, kin)
        write_ranking(output / f"{target}.json", target, lessons, policy, hidden)


def learn(agent: str, folder: Path) -> None:
    """Write an agent's lessons and decisions."""
    study = StoredStudy(STUDIES / agent)
    horizon, kind = study.about["horizon"], study.about["policy"]["kind"]
    path = study.folder / LESSONS_FILE
    labels = read_labels(agent, folder)
    columns, inputs = labels.columns, inputs_of(labels, kind)
    with np.load(path) as kept:
        keys = kept["keys"]
    own = Labels.read([folder / f"{agent}-own.npz"])
    add_lessons(Stored.read(path), keys, own, labels, inputs, horizon).write(path, keys)
    groups, kin = to_judge(labels, horizon)
    regret = columns["single"].max(axis=1) - columns["own"]
    criticality = columns["own"] - columns["single"].mean(axis=1)
    judged = groups >= 0
    found: dict[str, Floats] = {
        "group": groups[judged].astype(float),
        "criticality": criticality[judged],
        "regret": regret[judged],
        "proxy": proxy_values(PROXIES[study.default_proxy], columns["recent"][judged, -1]),
    }
    for name, target in (("learned-regret", regret), ("learned-stakes", regret + criticality)):
        found[name] = rank(Lessons(inputs, target[:, None], groups, kin))[judged]
    study.put_beside(
        FILE,
        {
            "labels": len(regret),
            "games": len(np.unique(columns["game"])),
            "columns": {
                name: [float(f"{value:.5g}") for value in values.tolist()]
                for name, values in found.items()
            },
        },
    )
    print(f"{agent}: {len(regret)} labels, {int(judged.sum())} of them judged")


def main() -> None:
    """Read the command line and learn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent with a stored study")
    parser.add_argument("--labels", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rankings", type=Path, metavar="FOLDER", help="write rankings there")
    parser.add_argument("--policy", help="with --rankings: of this agent, instead of AGENT's own")
    options = parser.parse_args()
    with in_a_sentence(parser):
        if options.rankings is not None:
            source = options.policy or f"zoo:{options.agent}"
            write_rankings(options.agent, options.labels, source, options.rankings)
        else:
            learn(options.agent, options.labels)


if __name__ == "__main__":
    main()
