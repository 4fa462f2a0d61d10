"""One agent from several states of a training: python mean_weights.py A/weights.pt B/weights.pt.

Each weight becomes the mean over the states; everything else is taken from the latest of them.
Late states of a training are scattered around one point, and their mean lies nearer to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from atari_training import WEIGHTS_FILE


def mean_weights(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the contents of a weights file, from the contents of several."""
    first, *others = sorted(states, key=lambda state: -state["progress"]["steps"])
    for other in others:
        for name in ("game", "actions", "seed"):
            if other["progress"][name] != first["progress"][name]:
                raise ValueError(f"the states are not of one training: another {name}")
        if other["kind"] != first["kind"]:
            raise ValueError("the states are not of one training: another kind of network")
    weights = {
        name: torch.stack([state["weights"][name] for state in states]).mean(dim=0)
        for name in first["weights"]
    }
    mean_of = sorted(state["progress"]["steps"] for state in states)
    return {**first, "weights": weights, "progress": {**first["progress"], "mean_of": mean_of}}


def main() -> None:
    """Read the command line, and write the mean."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "weights", type=Path, nargs="+", help="weights.pt of two checkpoints or more"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    try:
        states = [
            torch.load(path, map_location="cpu", weights_only=True) for path in options.weights
        ]
        mean = mean_weights(states)
        options.out.mkdir(parents=True, exist_ok=True)
        torch.save(mean, options.out / WEIGHTS_FILE)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{options.out / WEIGHTS_FILE}: the mean of steps {mean['progress']['mean_of']}")


if __name__ == "__main__":
    main()
