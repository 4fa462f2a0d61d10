"""The demonstration: a small study of a bundled agent, from episodes to pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from safemargin.cli.console import ProgressBar, print_margins, study_to_judge
from safemargin.cli.options import print_json
from safemargin.core.records import Tuples
from safemargin.core.settings import Settings
from safemargin.replay.critical_moments import mean_losses
from safemargin.study.study import Study

ENVIRONMENT = "atari:pong"
POLICY = "zoo:pong-a3c"
MOMENTS = 30
"""Number of moments of each phase: enough to see the shape of things, too few to rely on."""
SETTINGS = Settings(gamma=0.98, n_values=(1, 2, 4, 8, 16), opening=400)
"""With γ = 0.98, 228 steps of a return count instead of 459: shorter trials, for a short demo."""
CONFIDENCE = 0.9
"""The confidence that this few moments allow."""
TOLERANCES = (0.1, 0.2, 0.4, 0.8)
SHOWN_N = 8


def run(folder: Path, *, workers: int | None = None, as_json: bool = False) -> None:
    """Collect, fit and draw; continue an earlier demonstration in the same folder."""
    path = folder / "study"
    with (
        ProgressBar() as progress,
        Study.create(path, ENVIRONMENT, POLICY, SETTINGS, progress=progress) as study,
    ):
        study.collect(MOMENTS, MOMENTS, workers=workers, progress=progress)
    with study_to_judge(path) as study:
        margins = study.fit(CONFIDENCE)
        file = margins.save(folder / "margins.json")
        pictures = study.plot(folder / "figures", confidence=CONFIDENCE)
        episode, step, text = most_critical(study.tuples())
    if as_json:
        figures = [str(picture) for picture in pictures]
        critical = {"episode": episode, "step": step}
        print_json({"margins": str(file), "figures": figures, "most_critical": critical})
        return
    print_margins(margins, TOLERANCES)
    print("A point counts 1, discounted by 2 % a step: a tolerance of 0.4 accepts losing a point")
    print("three seconds from now. Where the proxy is high, few mistakes are allowed.")
    print(text)
    print("Look up one margin:")
    middle = (margins.lowest_proxy + margins.highest_proxy) / 2
    print(f"  {program()} margin {file} --proxy {middle:.2g} --tolerance 0.4")
    print("See the decisions that mattered, on a page or in a file to mail:")
    print(f"  {program()} explore {folder / 'study'}")
    print(f"  {program()} report {folder / 'study'} -o {folder / 'report.html'}")
    print("margins  " + str(file))
    for picture in pictures:
        print("picture  " + str(picture))


def most_critical(tuples: Tuples) -> tuple[str, int, str]:
    """Return the episode and step that lose most, averaged over all n, and a sentence on it."""
    column = tuples.n_values.index(SHOWN_N)
    losses = tuples.criticalities[:, column]
    row = int(np.argmax(mean_losses(tuples)))
    episode = tuples.keys[row].title(has_lives=bool(tuples.lives.any()))
    step = int(tuples.steps[row])
    text = (
        f"The most critical of {len(losses)} moments: step {step} of episode {episode}, where "
        f"{SHOWN_N} random actions cost {losses[row]:.2f} ± {tuples.half_widths[row, column]:.2f} "
        f"(the median moment: {np.median(losses):.2f})."
    )
    return episode, step, text


def program() -> str:
    """Return how this program was called: by its path if it is not on PATH."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "safemargin" else "safemargin"
