"""Plays with an overseer who acts where a learned ranking says the agent is wrong: does it help?

    python reproduction/labelled.py pong-a3c --labels labels --policy weaker.onnx --rankings ranks
    python reproduction/supervise_ranked.py pong-a3c --policy weaker.onnx --rankings ranks

As in supervise.py the overseer is a lookahead, and what differs is who chooses the decisions that
it looks at. Here every strategy looks at the same share of each game, because its threshold falls
while it has looked too seldom; thresholds come from other games, which the agent plays alone.
Results go to studies/AGENT/ranked.json, with --policy to ranked-NAME.json; run it again to go on.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from live import OwnWay, in_a_sentence, in_processes
from looking import Looker, Notes
from stored import Refused, StoredStudy, positive, stored_study
from supervise import HERE, Plan, Supervised, Supervisor, measured

from safemargin.cli.console import ProgressBar
from safemargin.margins import Ranking
from safemargin.policies.base import batch_of
from safemargin.policies.features import History, with_value

STRATEGIES = ("nobody", "random", "proxy", "stakes", "regret", "gain")
LEARNED = ("stakes", "regret")
PILOT_EVERY = 50
"""In the other games true regret is measured at one decision out of this many."""
FIRST_PILOT = 10_000


class Overseen(Supervisor):
    """An agent in its game, what rankings say of its decisions, and the lookahead."""

    def __init__(
        self,
        study: StoredStudy,
        plan: Plan,
        rankings: Mapping[str, Path],
        other: Path | None = None,
    ) -> None:
        super().__init__(study, plan, other)
        self.rankings = {target: Ranking.load(path) for target, path in rankings.items()}
        for target, ranking in self.rankings.items():
            if ranking.probe.policy != self.runner.policy.identity:
                raise Refused(f"the ranking in {rankings[target]} was learned of another agent")

    def look_on(
        self, strategy: str, game: int, look: Callable[..., bool], names: set[str]
    ) -> Supervised:
        """Play this many decisions; `look(values, gain)` says whether the overseer looks.

        `names`: the values that are asked for.
        """
        runner, plan = self.runner, self.plan
        simulator, policy = runner.simulator, runner.policy
        observation = self.begin(game)
        history, way = History(policy.kind, 1), OwnWay(runner)
        deaths = looked_at = overruled = 0
        reward = 0.0
        for _ in range(plan.decisions):
            rows, _ = runner.scores([observation], [None])
            own = int(runner.choose(rows[0], None, simulator.mask))
            values = {"proxy": self.proxy_of(rows[0])} if "proxy" in names else {}
            if names & set(LEARNED):
                found = policy.features(batch_of([observation]), None)
                inputs = history.add(found.scores, with_value(found))
                for name in names & set(LEARNED):
                    values[name] = float(self.rankings[name].probe(inputs)[0][0])

            @cache  # asked for twice where it decides who looks
            def gain(own: int = own) -> tuple[float, int]:
                """Return what the best action gains over the agent's own, and that action."""
                returns = self.returns(way if strategy == "gain" else None)
                return measured("gain", returns, own), int(returns.argmax())

            taken = own
            if look(values, gain):
                looked_at += 1
                more, best = gain()
                if more > 0:
                    taken, overruled = best, overruled + 1
            step, observation = self.step(taken)
            reward += step.reward
            deaths += step.terminated
            if step.terminated or step.truncated:
                history.forget([0])
            if taken != own or step.terminated or step.truncated:
                way.leave()
            else:
                way.follow()
        return Supervised(strategy, game, plan.decisions, deaths, reward, looked_at, overruled)

    def references(self, game: int) -> dict[str, list[float]]:
        """Return every number at the decisions of a game that the agent plays alone."""
        notes = Notes(PILOT_EVERY)
        self.look_on("nobody", FIRST_PILOT + game, notes, {"proxy", *self.rankings})
        return notes.found


Made = tuple[Path, Plan, dict[str, Path], Path | None]
"""What an overseen agent is made of."""


def pilot_one(made: Made, game: int) -> dict[str, list[float]]:
    """Play a pilot game in a separate process."""
    folder, *rest = made
    return Overseen(StoredStudy(folder), *rest).references(game)


def play_one(made: Made, strategy: str, game: int, reference: list[float]) -> Supervised:
    """Play one game in a separate process."""
    folder, plan, *rest = made
    overseen = Overseen(StoredStudy(folder), plan, *rest)
    share = 0.0 if strategy == "nobody" else plan.budget
    look = Looker(strategy, share, np.array(reference), (STRATEGIES.index(strategy), game))
    return overseen.look_on(strategy, game, look, {strategy})


def supervise(made: Made, path: str, options: argparse.Namespace) -> None:
    """Play the games that were not played yet, and keep each that is finished."""
    study, plan = StoredStudy(made[0]), made[1]
    until = time.time() + 60 * options.minutes
    about = {"plan": asdict(plan), "policy": "" if made[3] is None else made[3].name}
    kept = study.beside(path, "about", "references", "played")
    if kept is None:
        kept = {"about": about, "references": {}, "played": []}
    elif kept["about"] != about:
        raise Refused(f"{path} was played with another plan, {kept['about']}; move it away first")
    if not {"proxy", "gain", *made[2]} <= kept["references"].keys():
        kept["references"] = {}
        for found in in_processes(
            pilot_one, [(made, game) for game in range(options.pilots)], options.workers
        ):
            for name, values in found.items():
                kept["references"].setdefault(name, []).extend(values)
        for name, values in kept["references"].items():  # in any order, so: sorted, and fewer
            some = np.linspace(0, len(values) - 1, min(len(values), 2000)).round().astype(int)
            kept["references"][name] = np.sort(values)[some].tolist()
    there = {(one["strategy"], one["game"]) for one in kept["played"]}
    wanted = [
        (strategy, game)
        for game in range(options.games)
        for strategy in options.strategies
        if (strategy not in LEARNED or strategy in made[2])
        and (strategy != "gain" or game < options.measured)
    ]
    tasks = [
        (made, *task, kept["references"].get(task[0], [0.0]))
        for task in wanted
        if task not in there
    ]
    with ProgressBar() as progress:
        progress.stage("supervised games", total=len(wanted), done=len(wanted) - len(tasks))
        for one in in_processes(_in_time, [(until, *task) for task in tasks], options.workers):
            if one is None:
                continue
            kept["played"].append(asdict(one))
            progress.advance(one.decisions)
            study.put_beside(path, kept)


def _in_time(until: float, *task: Any) -> Supervised | None:
    return play_one(*task) if time.time() < until else None


def main() -> None:
    """Read the command line and play what is not yet there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent with a stored study")
    parser.add_argument("--studies", type=Path, default=HERE / "studies", metavar="FOLDER")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="play with this agent instead")
    parser.add_argument(
        "--rankings", type=Path, required=True, metavar="FOLDER",
        help="with regret.json and stakes.json, from labelled.py --rankings",
    )  # fmt: skip
    parser.add_argument("--games", type=positive, default=64, help="of each strategy (default 64)")
    parser.add_argument("--measured", type=int, default=32, help="of true regret (default 32)")
    parser.add_argument("--pilots", type=positive, default=32, help="other games (default 32)")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--decisions", type=positive, default=500, help="of a game (default 500)")
    parser.add_argument("--budget", type=float, default=0.05, help="default 0.05")
    parser.add_argument("--lookahead", type=positive, default=150, metavar="STEPS")
    parser.add_argument("--warm-up", type=positive, default=2000, metavar="STEPS")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no game after these")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if not 0 < options.budget < 1:
        parser.error(f"--budget must lie between 0 and 1, got {options.budget:g}")
    plan = Plan(
        options.agent, options.budget, options.decisions, options.lookahead, options.warm_up
    )
    with in_a_sentence(parser):
        study = stored_study(options.studies, options.agent)
        rankings = {
            target: path
            for target in LEARNED
            if (path := options.rankings / f"{target}.json").exists()
        }
        name = "ranked.json" if options.policy is None else f"ranked-{options.policy.stem}.json"
        supervise((study.folder, plan, rankings, options.policy), name, options)


if __name__ == "__main__":
    main()
