"""What learned proxies grant the paper's agents, by nested cross-validation by play.

    python reproduction/learned.py                    # all agents: tables, and learned.json each
    python reproduction/learned.py pong-a3c --gather runs/pong-a3c

The lessons (what the agent's network made of each moment, and the losses there) lie beside the
stored studies as lessons.npz; --gather takes them from a study on disk, with its labels if it has
any. Model, recipe and bound are then fitted without each fifth of the plays in turn, and judged on
that fifth; each promise chooses its own recipe, by the margins that it would grant. The folds run
in as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import lzma
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from live import in_processes
from stored import Refused, StoredStudy, positive

import safemargin as sm
from safemargin.core.records import Floats
from safemargin.margins.bounds.ranks import assign_folds
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.learned.choosing import Judge, mean_margin, values_for_fold
from safemargin.margins.learned.crossfit import Lessons
from safemargin.margins.learned.models import Recipe, main_directions
from safemargin.policies.features import LAGS, PARTS, WINDOW, probe_inputs
from safemargin.policies.zoo import zoo_card
from safemargin.study.lessons import read_material
from safemargin.validation.heldout import BINS, FOLDS, HeldOut, hold_out

STUDIES = Path(__file__).parent / "studies"
LESSONS_FILE, FILE = "lessons.npz", "learned.json"
TOLERANCES = (0.25, 0.5, 1.0)
CONFIDENCE = 0.95
JUDGES = (
    Judge(TOLERANCES, "bound", CONFIDENCE),
    *(Judge((tolerance,), "margin", CONFIDENCE) for tolerance in TOLERANCES),
)
"""The promises that are judged; each chooses a recipe of its own."""


def gather(study_folder: Path, target: Path) -> None:
    """Write the lessons of a study on disk, whose moments have features."""
    with sm.Study.open(study_folder) as study:
        material = read_material(study.store, study.settings)
        lessons = material.lessons
        proxy = np.full(len(lessons), np.nan)
        proxy[material.own] = study.tuples().proxies
        keys = [(*each.game_keys, each.life) for each in material.keys]
        found = Stored(lessons, material.natural, proxy, material.n_values)
        found.write(target, np.column_stack([keys, study.tuples().steps]))


DIRECTIONS = 256
"""This many directions of the inputs are kept; models use the first 64."""
STEP = 0.25
"""Coordinates are kept in steps of this share of an input's spread."""


def pack(inputs: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """Compress inputs [moments, inputs] to their coordinates along their main directions.

    Of what lies along none of these, only its length at each moment and its spread at each input
    are kept: `unpack` puts noise like that there, so that moments stay as far from one another, and
    from what models know, as they were.
    """
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
    spread[spread <= 1e-6] = 1
    ready = (inputs - mean) / spread
    directions = main_directions(ready, DIRECTIONS)
    tallest = np.abs(directions).max(axis=0)
    rounded = np.round(directions / tallest * 127).astype(np.int8)
    directions = rounded * (tallest / 127)
    steps = np.round(ready @ directions / STEP).astype(np.int16)
    rest = ready - steps * STEP @ directions.T
    return {
        "mean": mean,
        "spread": spread,
        "tallest": tallest,
        "directions": _squeezed(rounded),
        "coordinates": _squeezed(steps.T),
        "rest": np.linalg.norm(rest, axis=1).astype(np.float16),
        "rest_spread": rest.std(axis=0).astype(np.float16),
    }


def unpack(packed: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Return inputs, [moments, inputs]."""
    mean, tallest = packed["mean"], packed["tallest"]
    shape = (len(mean), len(tallest))
    directions = _loosened(packed["directions"], np.int8).reshape(shape) * (tallest / 127)
    steps = _loosened(packed["coordinates"], np.int16).reshape(len(tallest), -1).T
    noise = np.random.default_rng(0).normal(size=(len(steps), len(mean))).astype(np.float32)
    noise *= packed["rest_spread"]
    noise -= noise @ directions @ directions.T
    noise *= packed["rest"][:, None] / np.linalg.norm(noise, axis=1, keepdims=True)
    ready = steps * np.float32(STEP) @ directions.T + noise
    return np.ascontiguousarray(ready * packed["spread"] + mean, np.float32)


def _squeezed(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(lzma.compress(np.ascontiguousarray(array).tobytes()), np.uint8)


def _loosened(packed: npt.NDArray[np.uint8], kind: type) -> npt.NDArray[Any]:
    return np.frombuffer(lzma.decompress(packed.tobytes()), kind)


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """The lessons of one agent."""

    lessons: Lessons
    natural: np.ndarray  # [lessons] of booleans
    proxy: Floats  # [lessons] the paper's; NaN for labels
    n_values: tuple[int, ...]

    @classmethod
    def of(cls, agent: str) -> Stored:
        """Read the lessons beside a stored study."""
        return cls.read(STUDIES / agent / LESSONS_FILE)

    @classmethod
    def read(cls, path: Path) -> Stored:
        """Read lessons.npz; Refused if it is missing or damaged."""
        try:
            with np.load(path) as stored:
                inputs = unpack(stored)
                lessons = Lessons(inputs, stored["losses"], stored["groups"], stored["kin"])
                n_values = tuple(stored["n_values"].tolist())
                return cls(lessons, stored["natural"], stored["proxy"], n_values)
        except (OSError, KeyError, ValueError, lzma.LZMAError) as error:
            raise Refused(
                f"{path} is missing or damaged ({error}); make it with --gather"
            ) from error

    def write(self, path: Path, keys: npt.NDArray[np.int64]) -> None:
        """Write lessons.npz; the keys are phase, game, life and step of the study's moments."""
        lessons = self.lessons
        np.savez_compressed(
            path,
            **pack(lessons.inputs),
            losses=lessons.losses,
            groups=lessons.groups,
            kin=lessons.kin,
            natural=self.natural,
            proxy=self.proxy,
            n_values=np.array(self.n_values),
            keys=keys,
        )

    @property
    def sample(self) -> Sample:
        """The natural moments with the paper's proxy."""
        lessons, natural = self.lessons, self.natural
        return Sample.from_arrays(
            self.proxy[natural],
            lessons.losses[natural],
            self.n_values,
            groups=lessons.groups[natural],
        )

    def folds(self) -> list[np.ndarray]:
        """Return which natural moments each fit of the cross-validation sees, each [natural]."""
        fold = assign_folds(self.sample, FOLDS)
        return [fold != left_out for left_out in range(FOLDS)]

    def relearned(
        self,
        seen: np.ndarray,
        judges: Sequence[Judge],
        recipes: Sequence[Recipe] | None = None,
    ) -> list[Floats]:
        """Return the natural moments' values by models that know only those seen, per judge."""
        lessons, natural = self.lessons, self.natural
        own = np.flatnonzero(natural)
        whole = ~lessons.labels
        whole[own[~seen]] = False
        whole &= lessons.apart_from(np.isin(np.arange(len(whole)), own[~seen]))
        found = values_for_fold(lessons, natural, self.n_values, whole, judges, recipes=recipes)
        return [values[natural] for values in found]

    def part(self, columns: npt.NDArray[np.int64], labels: float, draw: int) -> Stored:
        """Return the lessons with some of their inputs, and a share of the labels, drawn anew."""
        lessons = self.lessons
        some = np.flatnonzero(lessons.labels)
        kept = ~lessons.labels
        kept[np.random.default_rng(draw).permutation(some)[: round(labels * len(some))]] = True
        taken = lessons.take(kept)
        taken = dataclasses.replace(taken, inputs=np.ascontiguousarray(taken.inputs[:, columns]))
        return Stored(taken, self.natural[kept], self.proxy[kept], self.n_values)

    def judge(self, known: Sequence[Sequence[Floats]]) -> dict[str, Any]:
        """Judge both promises with the paper's proxy and with a learned one.

        `known`: the values of the natural moments for each fold and judge, each [natural].
        """
        lessons, sample = self.lessons, self.sample
        folds = self.folds()
        results: dict[str, list[dict[str, Any]]] = {}
        for name in ("paper", "learned"):
            for number, judge in enumerate(JUDGES):
                values = [
                    self.proxy[self.natural] if name == "paper" else each[number] for each in known
                ]
                of = {seen.tobytes(): each for seen, each in zip(folds, values, strict=True)}
                judged = hold_out(
                    sample, relearn=lambda seen, of=of: of[seen.tobytes()], **judge.fit
                )
                fifths = _fifths(folds, values)
                results.setdefault(f"{name}, {judge.promise}", []).extend(
                    _row(judged, fifths, each) for each in judge.tolerances
                )
        return {
            "natural_moments": int(self.natural.sum()),
            "other_moments": int((~self.natural & ~lessons.labels).sum()),
            "labels": int(lessons.labels.sum()),
            "plays": len(np.unique(lessons.groups[self.natural])),
            "confidence": CONFIDENCE,
            "tolerances": list(TOLERANCES),
            "perfect": [mean_margin(sample.losses, self.n_values, each) for each in TOLERANCES],
            "results": results,
        }


def _fifths(folds: Sequence[np.ndarray], values: Sequence[Floats]) -> npt.NDArray[np.int64]:
    """Return the fifth of the proxy's range that each moment lies in, as its fit saw the range."""
    found = np.zeros(len(folds[0]), np.int64)
    for seen, each in zip(folds, values, strict=True):
        edges = np.quantile(each[seen], np.linspace(0, 1, BINS + 1)[1:-1])
        found[~seen] = np.searchsorted(edges, each[~seen], side="right")
    return found


def _row(judged: HeldOut, fifths: npt.NDArray[np.int64], tolerance: float) -> dict[str, Any]:
    """Return the mean margin and what failed at one tolerance: in all, by granted value, by fifth.

    The parts list how many failed, of how many that were granted a margin above 0.
    """
    margins, failed = judged.margins(tolerance), judged.chain_failures(tolerance)
    granted = margins > 0
    return {
        "mean_margin": float(margins.mean()),
        "failed": int(failed.sum()),
        "granted": int(granted.sum()),
        "by_value": {
            str(n): [int(failed[margins == n].sum()), int((margins == n).sum())]
            for n in judged.sample.n_values
        },
        "by_fifth": [
            [int(failed[fifths == part].sum()), int(granted[fifths == part].sum())]
            for part in range(BINS)
        ],
    }


@dataclasses.dataclass(frozen=True)
class Variant:
    """The lessons of an agent, or some of them."""

    agent: str
    parts: tuple[str, ...] = PARTS
    lags: int = len(LAGS)
    """The hidden layer is seen at this many of the lags."""
    labels: float = 1.0
    """The share of the cheap labels that is used."""
    draw: int = 0


@lru_cache(maxsize=2)
def read_variant(variant: Variant) -> Stored:
    """Read the lessons of an agent, and keep what a variant uses of them."""
    stored = Stored.of(variant.agent)
    inputs = stored.lessons.inputs.shape[1]
    widths = part_widths(variant.agent, inputs)
    starts = dict(zip(PARTS, np.cumsum([0, *widths.values()]).tolist(), strict=False))
    used = {**widths, "hidden": widths["hidden"] // len(LAGS) * variant.lags}
    columns = [np.arange(starts[part], starts[part] + used[part]) for part in variant.parts]
    return stored.part(np.concatenate(columns), variant.labels, variant.draw)


def part_widths(agent: str, inputs: int) -> dict[str, int]:
    """Return how many of an agent's inputs belong to each part of them."""
    kind = StoredStudy(STUDIES / agent).about["policy"]["kind"]
    scores = np.zeros((1, WINDOW + 1, len(zoo_card(agent)["actions"])), np.float32)
    nothing = np.zeros((1, len(LAGS), 0), np.float32)
    widths = {part: probe_inputs(kind, scores, nothing, (part,)).shape[1] for part in PARTS}
    return {**widths, "hidden": inputs - sum(widths.values())}


def _fold(
    variant: Variant, fold: int, judges: Sequence[Judge], recipes: Sequence[Recipe] | None
) -> tuple[Variant, int, list[Floats]]:
    stored = read_variant(variant)
    return variant, fold, stored.relearned(stored.folds()[fold], judges, recipes)


def judge_all(
    variants: Iterable[Variant],
    workers: int,
    judges: Sequence[Judge] = JUDGES,
    recipes: Sequence[Recipe] | None = None,
) -> Iterator[tuple[Variant, list[list[Floats]]]]:
    """Yield the natural moments' values for each fold and judge, as variants are finished."""
    tasks = [(variant, fold, judges, recipes) for variant in variants for fold in range(FOLDS)]
    found: dict[Variant, dict[int, list[Floats]]] = {}
    for variant, fold, values in in_processes(_fold, tasks, workers):
        of = found.setdefault(variant, {})
        of[fold] = values
        if len(of) == FOLDS:
            yield variant, [of[each] for each in range(FOLDS)]


def show(agent: str, found: dict[str, Any]) -> None:
    """Print the table of one agent."""
    print(
        f"\n{agent}: {found['natural_moments']} natural moments on {found['plays']} plays, "
        f"{found['other_moments']} others and {found['labels']} labels to learn from"
    )
    columns = "".join(f"  ζ = {tolerance:<18g}" for tolerance in found["tolerances"])
    print(f"{'mean margin (failed of granted)':34}{columns}")
    for name, rows in found["results"].items():
        cells = [
            f"{row['mean_margin']:5.1f} ({row['failed']:3} of {row['granted']:3}, "
            f"{row['failed'] / max(row['granted'], 1):4.1%})"
            for row in rows
        ]
        print(f"{name:34}" + "".join(f"  {cell:22}" for cell in cells))
    perfect = "".join(f"  {each:5.1f}{'':17}" for each in found["perfect"])
    print(f"{'perfect knowledge':34}{perfect}")


def main() -> int:
    """Judge the agents that are named, or all whose lessons are stored."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("agents", nargs="*", help="default: all whose lessons are stored")
    parser.add_argument("--gather", type=Path, metavar="STUDY", help="take the lessons of a study")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    stored = sorted(path.parent.name for path in STUDIES.glob(f"*/{LESSONS_FILE}"))
    agents = options.agents or stored
    try:
        if options.gather is not None:
            if len(agents) != 1:
                raise Refused("--gather takes the lessons of one agent; name it")
            gather(options.gather, STUDIES / agents[0] / LESSONS_FILE)
        for variant, known in judge_all(map(Variant, agents), options.workers):
            found = read_variant(variant).judge(known)
            StoredStudy(STUDIES / variant.agent).put_beside(FILE, found)
            show(variant.agent, found)
    except (Refused, sm.SafemarginError) as error:
        print(f"learned.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
