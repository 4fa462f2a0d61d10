"""The demonstration: a small study of a bundled agent, from episodes to pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safemargin.console import ProgressBar, print_margins, warnings_as_notes
from safemargin.settings import Settings
from safemargin.study import Study

ENVIRONMENT = "CartPole-v1"
POLICY = "zoo:cartpole"
MOMENTS = 150
"""Of each phase: enough to see the shape of things in a minute, too few to rely on."""
SETTINGS = Settings(gamma=0.95, opening=20)
"""With γ = 0.95 a return is at most 20 and 90 steps of it count: short trials, for a short demo."""


def run(folder: Path, *, workers: int | None = None, as_json: bool = False) -> None:
    """Collect, fit and draw; going on where an earlier demonstration stopped."""
    with ProgressBar() as progress:
        study = Study.create(folder / "study", ENVIRONMENT, POLICY, SETTINGS, progress=progress)
        study.collect(MOMENTS, MOMENTS, workers=workers, progress=progress)
    with study:
        with warnings_as_notes():
            margins = study.fit()
        file = margins.save(folder / "margins.json")
        pictures = study.plot(folder / "figures")
    if as_json:
        shown = {"margins": str(file), "figures": [str(picture) for picture in pictures]}
        print(json.dumps(shown, indent=2))
        return
    print_margins(margins, [1, 2, 4, 8])
    print("The pole earns 1 for each step that it stands, 20 in all after discounting; a tolerance")
    print(
        "of 2 accepts to lose a tenth of that. Where the proxy is high, few mistakes are allowed."
    )
    print("Look one margin up:")
    middle = (margins.lowest_proxy + margins.highest_proxy) / 2
    print(f"  {program()} margin {file} --proxy {middle:.2g} --tolerance 2")
    print("margins  " + str(file))
    for picture in pictures:
        print("picture  " + str(picture))


def program() -> str:
    """How this program was called: perhaps by a path, where it is on none."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "safemargin" else "safemargin"
