"""The demonstration: a small study of a bundled agent, from episodes to a page about them."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from safemargin.cli.console import ProgressBar, print_margins, study_to_judge
from safemargin.cli.options import print_json
from safemargin.core.records import Tuples
from safemargin.core.settings import Settings
from safemargin.errors import MissingExtra
from safemargin.margins.lookup import ZOO, Margins
from safemargin.policies.zoo import zoo_card
from safemargin.replay.critical_moments import mean_losses
from safemargin.study.lessons import inputs_at_moments
from safemargin.study.study import Study

ENVIRONMENT = "atari:pong"
POLICY = "zoo:pong-a3c"
MOMENTS = 30
"""Number of moments of each phase: enough to see the shape of things, too few to rely on."""
SETTINGS = Settings(gamma=0.98, n_values=(1, 2, 4, 8, 16), opening=400, seed=1)
"""With γ = 0.98, 228 steps of a return count instead of 459: shorter trials, for a short demo.

The bundled margins were learned from the games of seed 0, so these are others.
"""
CONFIDENCE = 0.9
"""The confidence that this few moments allow."""
TOLERANCES = (0.1, 0.2, 0.4, 0.8)
LEARNED_TOLERANCE = 0.5
SHOWN_N = 8

LIBRARIES = ("ale_py", "cv2", "fastapi", "plotly")
"""What the extra `demo` brings: a game, and pages about it."""
WORST_MOMENT = "#moment-1"
"""The part of a report that the browser opens at."""


def run(
    folder: Path, *, workers: int | None = None, browser: bool = True, as_json: bool = False
) -> None:
    """Collect, fit, draw and report; continue an earlier demonstration in the same folder."""
    if not all(find_spec(name) for name in LIBRARIES):
        raise MissingExtra("the demonstration", extra="demo")
    from safemargin.web.report import write_report

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
        learned = learned_margins(study)
        with ProgressBar() as progress:
            report = write_report(study, folder / "report.html", progress=progress).path
    if as_json:
        print_json(
            {
                "margins": str(file),
                "figures": [str(picture) for picture in pictures],
                "report": str(report),
                "most_critical": {"episode": episode, "step": step},
            }
        )
        return
    print_margins(margins, TOLERANCES)
    print("A point counts 1, discounted by 2 % a step: a tolerance of 0.4 accepts losing a point")
    print("three seconds from now. Where the proxy is high, few mistakes are allowed.")
    print(text)
    if learned:
        print(learned)
    print("margins  " + str(file))
    for picture in pictures:
        print("picture  " + str(picture))
    print("report   " + str(report))
    print("Look up one margin:")
    middle = (margins.lowest_proxy + margins.highest_proxy) / 2
    print(f"  {program()} margin {file} --proxy {middle:.2g} --tolerance 0.4")
    print("Explore the game around that moment, step by step:")
    print(f"  {program()} explore {path}")
    if browser and can_show_a_page(os.environ, sys.platform) and sys.stdout.isatty():
        webbrowser.open(report.resolve().as_uri() + WORST_MOMENT)
    else:
        print("Open the report in a browser; it is one file and needs no network.")


def can_show_a_page(environment: Mapping[str, str], platform: str) -> bool:
    """Return whether a browser window would be seen by somebody: not in CI, nor without a screen.

    Over SSH, or in a container, the webbrowser module would otherwise start a browser for text
    terminals in the middle of the output.
    """
    if environment.get("CI"):
        return False
    if platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in environment
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


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


def learned_margins(study: Study) -> str:
    """Say what the margins that come with the agent grant at the natural moments; "" if none do."""
    if "margins" not in zoo_card(POLICY.removeprefix(ZOO)):
        return ""
    margins = Margins.load(POLICY)
    assert margins.probe is not None
    keys, inputs = inputs_at_moments(study.store, study.settings)
    values, outside = margins.probe(inputs[[key.phase == "natural" for key in keys]])
    granted = np.where(outside, 0, margins.lookup(values, LEARNED_TOLERANCE).margin)
    few = margins.n_values[len(margins.n_values) // 2 - 1]
    none, some = np.sum(granted == 0), np.sum((granted > 0) & (granted <= few))
    return (
        f"Learned margins come with this agent ({margins.counts['natural']} moments of other "
        f"games). At a tolerance of {LEARNED_TOLERANCE:g}\nthey grant {granted.mean():.1f} random "
        f"actions on average: none at {none} of the {len(granted)} natural moments, 1 to {few} at\n"
        f"{some}, more at {len(granted) - none - some}."
    )


def program() -> str:
    """Return how this program was called: by its path if it is not on PATH."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "safemargin" else "safemargin"
