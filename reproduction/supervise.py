"""Plays with an overseer who acts in a small share of the decisions: does supervision help?

python reproduction/supervise.py beamrider-a3c

The overseer stands in for a human, and knows more than one: a lookahead that tries each action in
the emulator, lets the agent continue, and takes the best. It may act in `--budget` of the
decisions; what differs is who chooses them: chance, the highest proxies, the lowest margins, the
highest true criticality (of one random action), or the most that the overseer itself could gain.
The last two are measured at every decision, which nobody could afford. All continue from the same
moments, reached by the agent alone. Thresholds come from the agent's stored study; those of the
last two from decisions of the unsupervised games. Results go to studies/AGENT/supervision.json; run
it again to continue.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from capture import margin_rank
from live import OwnWay, in_a_sentence, in_processes, runner_of
from stored import Refused, StoredStudy, positive, stored_study

from safemargin.cli.console import ProgressBar
from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.criticality.batch import action_returns
from safemargin.criticality.coalescing import StateIndex
from safemargin.criticality.rollouts import Point
from safemargin.environments.simulator import Step
from safemargin.margins.lookup import Margins
from safemargin.policies.proxies import PROXIES, proxy_values

HERE = Path(__file__).parent
RESULT = "supervision.json"
TOLERANCE = 0.5
PILOT_EVERY = 50
"""In unsupervised games, true criticality is measured at one decision out of this many."""
PILOT_GAMES = 32
"""The thresholds come from this many first games; later ones must not move them."""
STRATEGIES = ("nobody", "random", "proxy", "margin", "criticality", "gain")
MEASURED = ("criticality", "gain")
"""Strategies that ask the lookahead at every decision."""


@dataclass(frozen=True)
class Plan:
    """What every game has in common."""

    agent: str
    budget: float
    decisions: int
    lookahead: int
    warm_up: int


@dataclass(frozen=True)
class Supervised:
    """This many decisions of one game, and of those after it."""

    strategy: str
    game: int
    decisions: int
    deaths: int
    reward: float
    looked_at: int
    overruled: int


@dataclass(frozen=True)
class Played(Supervised):
    """The same, with what an unsupervised game shows."""

    pilot: dict[str, list[float]]
    """By strategy: what it would have gone by, at some decisions of unsupervised games."""


class Threshold:
    """The highest share of some values: above the threshold always, at the threshold sometimes."""

    def __init__(self, values: Floats, share: float) -> None:
        self.level = float(np.quantile(values, 1 - share, method="higher"))
        above, beside = np.mean(values > self.level), np.mean(values == self.level)
        self.chance = float(np.clip((share - above) / max(beside, 1e-12), 0, 1))

    def picks(self, value: float, rng: np.random.Generator) -> bool:
        """Whether a decision of this value is looked at."""
        drawn = rng.random()
        return value > self.level or (value == self.level and drawn < self.chance)


class Supervisor:
    """An agent in its game, and the lookahead that may act for it."""

    def __init__(self, study: StoredStudy, plan: Plan, other: Path | None = None) -> None:
        self.study = study
        self.plan = plan
        gamma = study.about["settings"]["gamma"]
        settings = Settings(
            gamma=gamma, n_values=(1,), horizon_error=gamma ** (plan.lookahead - 0.5)
        )
        self.runner = runner_of(study, settings, other)
        self.proxy = PROXIES[study.default_proxy]

    def returns(self, way: OwnWay | None = None) -> Floats:
        """Return the discounted return of each action, the agent acting after it, [actions].

        `way`: how the agent would continue alone, if that is known.
        """
        runner = self.runner
        point = Point(runner.simulator.save(), None)
        state_index = StateIndex(runner.settings.horizon) if way is None else way.state_index()
        found = action_returns(runner, point, state_index)
        runner.simulator.restore(point.snapshot)
        return found

    def play(self, strategy: str, game: int, look: Callable[..., bool]) -> Played:
        """Play this many decisions from a state within a game on, through several lives."""
        runner, plan = self.runner, self.plan
        simulator = runner.simulator
        rng = np.random.default_rng([STRATEGIES.index(strategy), game])
        observation = self.begin(game)
        deaths = looked_at = overruled = 0
        reward = 0.0
        pilot: dict[str, list[float]] = {}
        way = OwnWay(runner)
        for decision in range(plan.decisions):
            rows, _ = runner.scores([observation], [None])
            own = int(runner.choose(rows[0], None, simulator.mask))
            taken, found = own, None
            if strategy in MEASURED:
                found = self.returns(way)
                value = measured(strategy, found, own)
            else:
                value = self.proxy_of(rows[0])
            if strategy == "nobody" and decision % PILOT_EVERY == 0:
                alone = self.returns()
                for name in MEASURED:
                    pilot.setdefault(name, []).append(measured(name, alone, own))
                pilot.setdefault("proxy", []).append(value)
            if look(value, rng):
                looked_at += 1
                found = self.returns() if found is None else found
                if found[own] < found.max():
                    taken = int(found.argmax())
                    overruled += 1
            step, observation = self.step(taken)
            reward += step.reward
            deaths += step.terminated
            if taken != own or step.terminated or step.truncated:
                way.leave()
            else:
                way.follow()
        return Played(strategy, game, plan.decisions, deaths, reward, looked_at, overruled, pilot)

    def begin(self, game: int) -> Any:
        """Go to a state in a game that the agent plays alone, the same for every strategy."""
        runner, rng = self.runner, np.random.default_rng([99, game])
        simulator = runner.simulator
        self._seed = 1_000 * game
        observation = simulator.reset(self._seed)
        opening = int(rng.integers(self.study.about["settings"]["opening"] + 1))
        for decision in range(opening + int(rng.integers(self.plan.warm_up))):
            if decision < opening:
                action = runner.random_actions(rng.random(runner.random_actions.width), None)
            else:
                rows, _ = runner.scores([observation], [None])
                action = runner.choose(rows[0], None, simulator.mask)
            _, observation = self.step(action)
        return observation

    def step(self, action: Any) -> tuple[Step, Any]:
        """Take an action; return its outcome and the next observation, if need be of a new game."""
        simulator = self.runner.simulator
        step = simulator.step(action)
        if not (step.terminated or step.truncated):
            return step, step.observation
        if simulator.game_goes_on:
            return step, simulator.next_life()
        self._seed += 1
        return step, simulator.reset(self._seed)

    def proxy_of(self, row: Any) -> float:
        space = self.runner.simulator.env.action_space
        return float(proxy_values(self.proxy, row[None], action_space=space)[0])


def measured(strategy: str, returns: Floats, own: int) -> float:
    """Return true criticality, or what the overseer could gain, from the return of each action.

    Rounded, since a mean of equal numbers differs from them in its last digit.
    """
    if strategy == "gain":
        return round(float(returns.max() - returns[own]), 9)
    return round(float(returns[own] - returns.mean()), 9)


def looker(
    strategy: str, study: StoredStudy, margins: Margins | None, plan: Plan, pilot: Floats
) -> Callable[[float, np.random.Generator], bool]:
    """Return how a strategy decides to look, from a decision's proxy or what was measured there."""
    if strategy == "nobody":
        return lambda value, rng: False
    if strategy == "random":
        return lambda value, rng: bool(rng.random() < plan.budget)
    if strategy in MEASURED:
        return Threshold(pilot, plan.budget).picks
    proxies = every_proxy(study)
    if strategy == "proxy":
        return Threshold(proxies, plan.budget).picks
    assert margins is not None
    rank = ranked_by(margins, proxies)
    threshold = Threshold(rank(proxies), plan.budget)
    return lambda value, rng: threshold.picks(float(rank(np.array([value]))[0]), rng)


def ranked_by(margins: Margins, proxies: Floats) -> Callable[[Floats], Floats]:
    """Return a function that ranks decisions: lowest margin first, then highest proxy."""
    every = np.sort(proxies)
    return lambda values: margin_rank(margins.lookup(values, TOLERANCE).margin, values, every)


def every_proxy(study: StoredStudy) -> Floats:
    """Return the proxies of all stored decisions."""
    return np.concatenate([life.proxies[study.default_proxy] for life in study.lives])


def alike(study: StoredStudy, budget: float) -> bool:
    """Whether the lowest margins and the highest proxies are the same decisions."""
    proxies = every_proxy(study)
    ranks = ranked_by(study.fit("calibrated"), proxies)(proxies)
    by_proxy, by_margin = Threshold(proxies, budget), Threshold(ranks, budget)
    return np.array_equal(proxies > by_proxy.level, ranks > by_margin.level) and np.array_equal(
        proxies == by_proxy.level, ranks == by_margin.level
    )


def play_one(folder: Path, plan: Plan, strategy: str, game: int, pilot: list[float]) -> Played:
    """Play one game in a separate process."""
    study = StoredStudy(folder)
    margins = study.fit("calibrated") if strategy == "margin" else None
    look = looker(strategy, study, margins, plan, np.array(pilot))
    return Supervisor(study, plan).play(strategy, game, look)


def main() -> None:
    """Read the command line and play what is not yet there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent with a stored study")
    parser.add_argument("--studies", type=Path, default=HERE / "studies", metavar="FOLDER")
    parser.add_argument("--games", type=positive, default=32, help="of each strategy (default 32)")
    parser.add_argument(
        "--strategies",
        nargs="+",
        default=STRATEGIES,
        choices=STRATEGIES,
        metavar="NAME",
        help=f"default: all of {', '.join(STRATEGIES)}; the last two take ten times as long",
    )
    parser.add_argument("--decisions", type=positive, default=1500, help="of a game (default 1500)")
    parser.add_argument("--budget", type=float, default=0.05, help="default 0.05")
    parser.add_argument(
        "--lookahead", type=positive, default=150, metavar="STEPS", help="default 150"
    )
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=6000,
        metavar="STEPS",
        help="the agent plays alone for up to this many steps first (default 6000, about a game)",
    )
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if not 0 < options.budget < 1:
        parser.error(f"--budget must lie between 0 and 1, got {options.budget:g}")
    plan = Plan(
        options.agent, options.budget, options.decisions, options.lookahead, options.warm_up
    )
    tasks = [(name, game) for game in range(options.games) for name in options.strategies]
    with in_a_sentence(parser):
        supervise(stored_study(options.studies, options.agent), plan, tasks, options.workers)


def supervise(study: StoredStudy, plan: Plan, wanted: list[tuple[str, int]], workers: int) -> None:
    """Play the wanted games, given as strategy and number, that were not played yet."""
    path = study.folder / RESULT
    kept = study.beside(RESULT, "plan", "played")
    if kept is not None and kept["plan"] != asdict(plan):
        raise Refused(f"{path} was played with another plan, {kept['plan']}; move it away first")
    played = [Played(**one) for one in kept["played"]] if kept else []
    same = alike(study, plan.budget)
    if same and {"proxy", "margin"} <= {name for name, _ in wanted}:
        print("The lowest margins are the highest proxies here: these games are played once.")
        wanted = [task for task in wanted if task[0] != "proxy"]
    there = {(one.strategy, one.game) for one in played}
    missing = [task for task in wanted if task not in there]
    pilots = [task for task in missing if task[0] == "nobody"]
    with ProgressBar() as progress:
        progress.stage("supervised games", total=len(wanted), done=len(wanted) - len(missing))
        for tasks in (pilots, [task for task in missing if task not in pilots]):
            pilot = {
                name: [
                    value
                    for one in played
                    if one.game < PILOT_GAMES
                    for value in one.pilot.get(name, [])
                ]
                for name in MEASURED
            }
            for name, _ in tasks:
                if name in MEASURED and not pilot[name]:
                    raise Refused(f"{name} needs games of nobody first: its threshold is theirs")
            every = [(study.folder, plan, *task, pilot.get(task[0], [])) for task in tasks]
            for one in in_processes(play_one, every, workers):
                played.append(one)
                progress.advance(one.decisions)
                found = {"alike": same, "played": [asdict(each) for each in played]}
                study.put_beside(RESULT, {"plan": asdict(plan), **found})


if __name__ == "__main__":
    main()
