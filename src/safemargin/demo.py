"""The demonstration: a small study of a bundled agent, from episodes to pictures."""

from __future__ import annotations

import json
from pathlib import Path

from safemargin.console import ProgressBar, print_margins
from safemargin.settings import Settings
from safemargin.study import Study

ENVIRONMENT = "CartPole-v1"
POLICY = "zoo:cartpole"
MOMENTS = 60
"""Of each phase: enough to see the shape of things in a minute, too few to rely on."""
SETTINGS = Settings(sampling_error=8.0, max_trials=40, opening=30)
"""A return is at most about 100 here, so a loss known to ±8 is known to 8 %."""


def run(folder: Path, *, workers: int | None = None, as_json: bool = False) -> None:
    """Collect, fit and draw; going on where an earlier demonstration stopped."""
    with ProgressBar() as progress:
        study = Study.create(folder / "study", ENVIRONMENT, POLICY, SETTINGS, progress=progress)
        study.collect(MOMENTS, MOMENTS, workers=workers, progress=progress)
    with study:
        margins = study.fit()
        file = margins.save(folder / "margins.json")
        pictures = study.plot(folder / "figures")
    if as_json:
        shown = {"margins": str(file), "figures": [str(picture) for picture in pictures]}
        print(json.dumps(shown, indent=2))
        return
    print_margins(margins, [5, 10, 20, 40])
    print("The reward is 1 for each step that the pole stands; a tolerance of 10 accepts to lose")
    print("10 discounted steps. Look one margin up:")
    print(f"  safemargin margin {file} --proxy {margins.lowest_proxy:.3g} --tolerance 10")
    print("margins  " + str(file))
    for picture in pictures:
        print("picture  " + str(picture))
