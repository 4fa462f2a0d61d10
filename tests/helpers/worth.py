"""What the bounds are worth under laws with known truth, as tables.

To print the tables of docs/methods.md, which takes about half an hour (less with `--studies 4`):
PYTHONPATH=src:tests python tests/helpers/worth.py
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.laws import FRESH, LAWS, N_VALUES, draw_study, judge, oracle, steps_of
from safemargin.margins.methods import fit_bound

MOMENTS = (1000, 2000)
CONFIDENCES = (0.9, 0.95, 0.99)
STUDIES = 40


@dataclass(frozen=True)
class Line:
    """One method under one law, averaged over studies."""

    law: str
    moments: int
    confidence: float
    method: str
    coverage: float  # of C_n, mean over natural steps and n
    worst_bin: float  # the lowest of five fifths of the natural steps, mean over n
    chain_failure: float  # the highest over tolerances
    ratio: float  # mean margin beside the oracle's, averaged over tolerances
    allowed: float  # the oracle's own coverage, which may be above β: steps in the law, the lift


def line(
    law: str, moments: int, confidence: float, method: str, studies: int, **options: Any
) -> Line:
    """Fit this many studies (the same for every method) and judge each fit exactly."""
    rng = np.random.default_rng([moments, sorted(LAWS).index(law)])
    worths = []
    for _ in range(studies):
        study = draw_study(LAWS[law], moments, rng)
        bound = fit_bound(
            study.proxies,
            study.losses,
            N_VALUES,
            confidence=confidence,
            method=method,
            natural=study.natural,
            **options,
        )
        worths.append(judge(bound, law))
    coverage = np.mean([worth.coverage for worth in worths], axis=0)  # [bins, n]
    margins = np.mean([worth.margin for worth in worths], axis=0)  # [tolerances]
    failures = np.mean([worth.chain_failure for worth in worths], axis=0)
    truth = LAWS[law].below(oracle(law, confidence), steps_of(law)[:, None])
    return Line(
        law=law,
        moments=moments,
        confidence=confidence,
        method=method,
        coverage=float(coverage.mean()),
        worst_bin=float(coverage.mean(axis=1).min()),
        chain_failure=float(failures.max()),
        ratio=float(np.mean(margins / worths[0].oracle_margin)),
        allowed=float(truth.mean()),
    )


def average(lines: list[Line]) -> float:
    """The mean ratio over laws."""
    return float(np.mean([line.ratio for line in lines]))


def print_table(moments: int, confidence: float, studies: int) -> None:
    """One table of docs/methods.md."""
    print(f"\nM = {moments}, β = {confidence:g}, {studies} studies\n")
    print("| law | coverage | oracle's | worst fifth | chain failure | margin / oracle's "
          "| paper: coverage | worst fifth | chain failure | margin / oracle's |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    pairs = {}
    for law in LAWS:
        ours, paper = pairs[law] = tuple(
            line(law, moments, confidence, method, studies) for method in ("calibrated", "paper")
        )
        name = f"{law} (fresh)" if law in FRESH else law
        print(
            f"| {name} | {ours.coverage:.3f} | {ours.allowed:.3f} | {ours.worst_bin:.3f} "
            f"| {ours.chain_failure:.3f} | {ours.ratio:.2f} | {paper.coverage:.3f} "
            f"| {paper.worst_bin:.3f} | {paper.chain_failure:.3f} | {paper.ratio:.2f} |",
            flush=True,
        )
    for name, laws in (("all", LAWS), ("fresh", FRESH)):
        ours_mean, paper_mean = (average([pairs[law][side] for law in laws]) for side in (0, 1))
        print(
            f"| **mean, {name}** | | | | | **{ours_mean:.3f}** | | | "
            f"| {paper_mean:.3f} (ours is {ours_mean / paper_mean:.2f} times that) |"
        )


def print_methods(moments: int, confidence: float, studies: int) -> None:
    """All methods beside one another, averaged over laws."""
    print(f"\nAll methods, M = {moments}, β = {confidence:g}, {studies} studies a law\n")
    print("| method | coverage, mean | lowest of all laws | worst fifth of all laws "
          "| chain failure, highest | margin / oracle's |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    variants: list[tuple[str, str, dict[str, Any]]] = [
        ("calibrated", "calibrated", {}),
        ("calibrated, split", "calibrated", {"calibration": "split"}),
        ("isotonic", "isotonic", {}),
        ("boosted", "boosted", {}),
        ("tolerance", "tolerance", {}),
        ("paper", "paper", {}),
        ("paper, no lift", "paper", {"lift": False}),
    ]
    for name, method, options in variants:
        lines = [line(law, moments, confidence, method, studies, **options) for law in LAWS]
        print(
            f"| {name} | {np.mean([one.coverage for one in lines]):.3f} "
            f"| {min(one.coverage for one in lines):.3f} "
            f"| {min(one.worst_bin for one in lines):.3f} "
            f"| {max(one.chain_failure for one in lines):.3f} | {average(lines):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=STUDIES)
    given = parser.parse_args()
    began = time.monotonic()
    for size in MOMENTS:
        for level in CONFIDENCES:
            print_table(size, level, given.studies)
    print_methods(1000, 0.95, max(given.studies // 4, 1))
    print(f"\n{time.monotonic() - began:.0f} s")
