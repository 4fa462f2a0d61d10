"""Finds when each death could last be put off, by looking for a way out back from its end.

python reproduction/last_chances.py beamrider-a3c

A game may report a lost life long after it was lost: Beamrider first shows the explosion. What the
agent decides meanwhile changes nothing. For each kept natural episode that ended in a death this
finds the last decision from which some tried actions outlive the recorded end by 16 decisions: each
action held all the time, and seven random sequences. It looks back from the end in growing strides
and halves the last of them. Results go to studies/AGENT/last_chances.json; repeat it to continue.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from live import in_a_sentence, in_processes, runner_of
from stored import (
    LAST_CHANCES_FILE,
    Refused,
    StoredStudy,
    positive,
    stored_study,
)

from safemargin.cli.console import ProgressBar
from safemargin.core.records import Episode, EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.replaying import native_action
from safemargin.criticality.rollouts import Runner
from safemargin.environments.simulator import Simulator, Snapshot

HERE = Path(__file__).parent
RANDOM_SEQUENCES = 7
LATER = 16
"""A death counts as put off if the life outlives its recorded end by this many decisions."""
FURTHEST = 256
"""Decisions before the end; a life that nothing saves from so far back has no last chance."""


@dataclass(frozen=True)
class LastChance:
    """How far before the reported end of a life its death could last be put off."""

    game: int
    life: int
    decisions_before_end: int | None
    """1 is the last decision of the life; None: further back than was looked."""


def last_chances(runner: Runner, game: int, deaths: dict[int, int]) -> list[LastChance]:
    """Search in some lives of a game, given with their numbers of decisions."""
    episodes = runner.run_game(EpisodeKey("natural", game, 0))
    found = []
    for life, decisions in deaths.items():
        episode = episodes[life]
        if episode.steps - episode.opening != decisions:
            raise Refused(f"game {game} does not end as in the study")
        earlier = [other.actions for other in episodes[:life]]
        furthest = min(FURTHEST, decisions)
        point = runner.go_to(episode, episode.steps - furthest, earlier)
        runner.simulator.restore(point.snapshot)
        places = _places(runner.simulator, episode, furthest)
        survives = partial(_survives, runner, np.random.default_rng([game, life]), places)
        found.append(LastChance(game, life, least(survives, furthest)))
    return found


def least(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least number from 1 on that holds, if the next ones do, too; None if none does.

    The search starts from below, in growing strides: from far back, few of the tried actions
    survive for other reasons.
    """
    low, high = 0, 1
    while not holds(high):
        if high == most:
            return None
        low, high = high, min(high + high // 2 + 1, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _places(simulator: Simulator, episode: Episode, furthest: int) -> dict[int, Snapshot]:
    """Return the states this many decisions before the end."""
    places = {}
    for back in range(furthest, 0, -1):
        places[back] = simulator.save()
        simulator.step(native_action(episode.actions[episode.steps - back]))
    return places


def _survives(
    runner: Runner, rng: np.random.Generator, places: dict[int, Snapshot], back: int
) -> bool:
    """Whether some actions lead well past the recorded end."""
    width, steps = runner.random_actions.width, back + LATER
    drawn = [
        [int(runner.random_actions(rng.random(width), None)) for _ in range(steps)]
        for _ in range(RANDOM_SEQUENCES)
    ]
    held = [[action] * steps for action in range(runner.simulator.env.action_space.n)]  # type: ignore[attr-defined]
    return any(_outlives(runner.simulator, places[back], actions) for actions in held + drawn)


def _outlives(simulator: Simulator, place: Snapshot, actions: list[int]) -> bool:
    simulator.restore(place)
    return not any(simulator.step(action, watched=False).terminated for action in actions)


def of_game(folder: Path, game: int, deaths: dict[int, int]) -> list[LastChance]:
    """Examine one game in a separate process."""
    study = StoredStudy(folder)
    runner = runner_of(study, Settings.from_mapping(study.about["settings"]))
    return last_chances(runner, game, deaths)


def main() -> None:
    """Read the command line and examine the deaths that are still missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent with a stored study")
    parser.add_argument("--studies", type=Path, default=HERE / "studies", metavar="FOLDER")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with in_a_sentence(parser):
        look_back(stored_study(options.studies, options.agent), options.workers)


def look_back(study: StoredStudy, workers: int) -> None:
    """Examine the deaths that were not examined yet."""
    kept = study.beside(LAST_CHANCES_FILE, "deaths")
    found = [LastChance(**one) for one in kept["deaths"]] if kept else []
    games: dict[int, dict[int, int]] = {}
    for life in study.lives:
        if life.died:
            games.setdefault(life.game, {})[life.number] = len(life.rewards)
    missing = {game: games[game] for game in games.keys() - {one.game for one in found}}
    with ProgressBar() as progress:
        progress.stage("last chances", total=len(games), done=len(games) - len(missing))
        tasks = [(study.folder, game, missing[game]) for game in sorted(missing)]
        for chances in in_processes(of_game, tasks, workers):
            found = sorted([*found, *chances], key=lambda one: (one.game, one.life))
            study.put_beside(LAST_CHANCES_FILE, {"deaths": [asdict(one) for one in found]})
            progress.advance(0)


if __name__ == "__main__":
    main()
