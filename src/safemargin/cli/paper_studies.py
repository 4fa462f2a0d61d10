"""The paper's studies: what each of them measures, and what is kept of a finished one.

Four agents, and three smaller studies that examine what the four leave open. `keep_tables` writes
what `reproduction/build.py` in the repository draws tables and figures from.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from safemargin.core.files import written_whole
from safemargin.core.progress import Progress
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean
from safemargin.study.export import export_steps, export_tuples
from safemargin.study.study import Study

TUPLES_FILE = "tuples.parquet"
STEPS_FILE = "steps.parquet"
ABOUT_FILE = "study.json"

OPENING = 400
"""The most random actions that a game starts with. Thirty change next to nothing: by then the first
ball of Pong is not in play yet, and nothing happens in Beamrider's first hundred steps."""
PAPERS_RULE = Settings(trial_plan="paper", opening=OPENING)
FIXED_PLAN = Settings(trial_plan="fixed", trials=48, opening=OPENING)


@dataclass(frozen=True, slots=True)
class PaperStudy:
    """An agent of the paper and what is measured of it."""

    name: str
    agent: str
    environment: str
    settings: Settings
    natural: int
    spread: int
    purpose: str
    episodes_kept: int = 0
    """This many natural episodes are kept step by step, to see what precedes a death."""

    @property
    def policy(self) -> str:
        return f"zoo:{self.agent}"


def _studies() -> dict[str, PaperStudy]:
    main = "as in the paper, which has 500 moments of each phase"
    rule = "the paper's stopping rule on the first moments of the same episodes"
    dense = replace(PAPERS_RULE, n_values=tuple(range(1, 33)))
    pong, beamrider = "atari:pong", "atari:beam_rider"
    listed = (
        PaperStudy("pong-apex", "pong-apex", pong, PAPERS_RULE, 500, 500, main),
        PaperStudy("pong-a3c", "pong-a3c", pong, PAPERS_RULE, 500, 500, main),
        PaperStudy("beamrider-apex", "beamrider-apex", beamrider, FIXED_PLAN, 500, 500, main, 100),
        PaperStudy("beamrider-a3c", "beamrider-a3c", beamrider, FIXED_PLAN, 500, 500, main, 100),
        PaperStudy(
            "pong-apex-dense", "pong-apex", pong, dense, 100, 100,
            "every n from 1 to 32, to see what the powers of two miss",
        ),
        PaperStudy(
            "beamrider-apex-rule", "beamrider-apex", beamrider, PAPERS_RULE, 50, 50, rule
        ),
        PaperStudy(
            "beamrider-a3c-rule", "beamrider-a3c", beamrider, PAPERS_RULE, 50, 50, rule
        ),
    )  # fmt: skip
    return {study.name: study for study in listed}


PAPER_STUDIES: Mapping[str, PaperStudy] = _studies()


def paper_study(name: str) -> PaperStudy:
    """Return one of the studies by its name."""
    if name not in PAPER_STUDIES:
        raise InvalidInput(
            f"there is no study {name!r} in the reproduction; {did_you_mean(name, PAPER_STUDIES)}"
        )
    return PAPER_STUDIES[name]


def begin(paper: PaperStudy, folder: Path, progress: Progress | None = None) -> Study:
    """Open the study in a folder, or create it there."""
    if importlib.util.find_spec("pyarrow") is None:  # better now than after hours of collecting
        raise MissingExtra("keeping the tables of a study", extra="parquet")
    return Study.create(folder, paper.environment, paper.policy, paper.settings, progress=progress)


def keep_tables(study: Study, paper: PaperStudy, folder: Path, *, machine: str | None) -> Path:
    """Write the data behind tables and figures, so that nobody has to simulate again."""
    folder.mkdir(parents=True, exist_ok=True)
    export_tuples(study.store, folder / TUPLES_FILE)
    if paper.episodes_kept:
        export_steps(study.store, folder / STEPS_FILE, episodes=paper.episodes_kept)
    about = {
        "name": paper.name,
        "purpose": paper.purpose,
        "environment": study.environment,
        "policy": study.policy,
        "settings": asdict(study.settings),
        "horizon": study.settings.horizon,
        "proxies": study.proxies,
        "default_proxy": study.default_proxy,
        "minimum_bandwidth": study.minimum_bandwidth,
        "status": study.status().to_dict(),
        "machine": machine
        or f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": study.store.meta("versions"),
        "command": f"safemargin reproduce {paper.name}",
    }
    with written_whole(folder / ABOUT_FILE) as path:
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return folder
