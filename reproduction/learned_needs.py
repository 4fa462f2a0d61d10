"""What learned proxies need: python reproduction/learned_needs.py pong-a3c beamrider-a3c

The nested cross-validation of learned.py again, with parts of the inputs alone and with parts of
the cheap labels alone, and with two models to choose among: ridge regression on the mean size of
losses, and networks on the share of n that break a tolerance. Results go to needs.json beside each
stored study as they come; run it again to go on.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from typing import Any

from learned import CONFIDENCE, STUDIES, Variant, judge_all, read_variant
from stored import Refused, StoredStudy, positive

import safemargin as sm
from safemargin.core.records import Floats
from safemargin.margins.learned.choosing import Judge, mean_margin
from safemargin.margins.learned.models import Recipe
from safemargin.validation.heldout import hold_out

FILE = "needs.json"
TOLERANCE = 0.5
JUDGES = tuple(Judge((TOLERANCE,), promise, CONFIDENCE) for promise in ("bound", "margin"))
RECIPES = (Recipe("ridge", "mean log size"), Recipe("networks", "broken share"))
PARTS = (("scores",), ("scores", "history"))
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)


def variants(agent: str) -> list[Variant]:
    """Return what is tried: parts of the inputs, and shares of the labels."""
    parts = [Variant(agent, each) for each in PARTS] + [Variant(agent, lags=1)]
    return parts + [Variant(agent, labels=share) for share in SHARES]


def judged(variant: Variant, known: list[list[Floats]]) -> dict[str, Any]:
    """Return the mean margins of both promises, in all and on each fold, and what failed."""
    stored = read_variant(variant)
    sample, folds = stored.sample, stored.folds()
    rows: dict[str, Any] = {}
    for number, judge in enumerate(JUDGES):
        of = {seen.tobytes(): each[number] for seen, each in zip(folds, known, strict=True)}
        found = hold_out(sample, relearn=lambda seen, of=of: of[seen.tobytes()], **judge.fit)
        margins, failed = found.margins(TOLERANCE), found.chain_failures(TOLERANCE)
        rows[judge.promise] = {
            "mean_margin": float(margins.mean()),
            "by_fold": [float(margins[~seen].mean()) for seen in folds],
            "failed": int(failed.sum()),
            "granted": int((margins > 0).sum()),
        }
    perfect = mean_margin(sample.losses, stored.n_values, TOLERANCE)
    losses = [sample.losses[~seen] for seen in folds]
    return {
        **asdict(variant),
        "label_count": int(stored.lessons.labels.sum()),
        "perfect": perfect,
        "perfect_by_fold": [mean_margin(each, stored.n_values, TOLERANCE) for each in losses],
        **rows,
    }


def main() -> int:
    """Try what was not tried yet with the agents that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", nargs="+", metavar="AGENT")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    kept = {
        agent: (StoredStudy(STUDIES / agent).beside(FILE, "tried") or {"tried": []})["tried"]
        for agent in options.agents
    }
    names = [name for name in asdict(Variant("")) if name != "agent"]
    there = {
        (agent, *(tuple(one[name]) if name == "parts" else one[name] for name in names))
        for agent, tried in kept.items()
        for one in tried
    }
    wanted = [
        variant
        for of_each in zip(*map(variants, options.agents), strict=True)
        for variant in of_each
        if (variant.agent, *(getattr(variant, name) for name in names)) not in there
    ]
    try:
        for variant, known in judge_all(wanted, options.workers, JUDGES, RECIPES):
            found = judged(variant, known)
            kept[variant.agent].append(found)
            StoredStudy(STUDIES / variant.agent).put_beside(FILE, {"tried": kept[variant.agent]})
            shares = [
                f"{judge.promise} {found[judge.promise]['mean_margin'] / found['perfect']:.3f}"
                for judge in JUDGES
            ]
            print(f"{variant}: {', '.join(shares)}", flush=True)
    except (Refused, sm.SafemarginError) as error:
        print(f"learned_needs.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
