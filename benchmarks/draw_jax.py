"""Draws how long studies in JAX take: python benchmarks/draw_jax.py docs/images/jax-scaling.png"""

from __future__ import annotations

import json
import re
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from results import COMMITTED

NAMES = {"cpu": "two busy CPU cores", "gpu": "H200, two CPU cores"}


def main() -> None:
    found: dict[str, list[tuple[int, float]]] = {device: [] for device in NAMES}
    for entry in json.loads(COMMITTED.read_text()):
        if match := re.fullmatch(r"jax_seconds_(\d+)_moments_(cpu|gpu)", entry["name"]):
            found[match[2]].append((int(match[1]), entry["value"]))
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for device, label in NAMES.items():
        moments, seconds = zip(*sorted(found[device]), strict=True)
        axes.loglog(moments, seconds, marker="o", label=label)
    axes.set(xlabel="moments (rocket, 8 trials of 44 steps each)", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
