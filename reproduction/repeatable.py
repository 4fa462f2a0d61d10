"""How much of an agent's regret is repeatable, and how much is luck?

    python reproduction/repeatable.py beamrider-a3c --minutes 20

At random decisions of games that the agent plays alone, each first action is followed for some
steps. The best of these futures over the agent's own is its regret, luck included. Where there is
some, and at every fourth decision without any, each first action is followed again under several
jitters (random actions now and then, the same after every first action). Results go to
studies/AGENT/repeatable.json; run it again to continue.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from live import in_a_sentence, runner_of
from stored import Refused, StoredStudy, positive, stored_study

from safemargin.core.settings import Settings
from safemargin.criticality.batch import action_returns
from safemargin.criticality.coalescing import StateIndex
from safemargin.criticality.repeatable import jittered, jittered_returns, repeatable
from safemargin.criticality.rollouts import Point
from safemargin.policies.proxies import PROXIES, proxy_values

HERE = Path(__file__).parent
RESULT = "repeatable.json"
WITHOUT_REGRET = 4
"""One in this many decisions without regret is followed under jitters, too."""


@dataclass(frozen=True)
class Plan:
    """What every decision has in common."""

    lookahead: int
    jitters: int
    epsilon: float
    per_game: int
    """Decisions of one game."""
    within: int
    """They are drawn from this many first steps of it."""


class Measurer:
    """An agent in its game, and every first action tried at some of its decisions."""

    def __init__(self, study: StoredStudy, plan: Plan) -> None:
        gamma = study.about["settings"]["gamma"]
        settings = Settings(
            gamma=gamma, n_values=(1,), horizon_error=gamma ** (plan.lookahead - 0.5)
        )
        self.plan, self.opening = plan, study.about["settings"]["opening"]
        self.runner = runner_of(study, settings)
        self.slipping = jittered(self.runner, plan.epsilon)
        self.proxy = PROXIES[study.default_proxy]

    def game(self, game: int) -> list[dict[str, Any]]:
        """Measure decisions of one game, in order."""
        runner, rng = self.runner, np.random.default_rng([7, game])
        simulator, seed = runner.simulator, 1_000 * game
        wanted = np.sort(rng.choice(self.plan.within, self.plan.per_game, replace=False))
        opening = int(rng.integers(self.opening + 1))
        observation = simulator.reset(seed)
        found = []
        for step in range(opening + int(wanted[-1]) + 1):
            if step < opening:
                action = runner.random_actions(rng.random(runner.random_actions.width), None)
            else:
                rows, _ = runner.scores([observation], [None])
                action = runner.choose(rows[0], None, simulator.mask)
                if step - opening in wanted:
                    found.append(self.decision(game, step, int(action), rows[0]))
            taken = simulator.step(action)
            observation = taken.observation
            if taken.terminated or taken.truncated:
                seed += 1
                observation = (
                    simulator.next_life() if simulator.game_goes_on else simulator.reset(seed)
                )
        return found

    def decision(self, game: int, step: int, own: int, scores: Any) -> dict[str, Any]:
        """Try every first action here, and leave the game as it was."""
        simulator = self.runner.simulator
        point = Point(simulator.save(), None)
        plain = action_returns(self.runner, point, StateIndex(self.runner.settings.horizon))
        returns = None
        if repeatable(plain, None, own).judged is None or step % WITHOUT_REGRET == 0:
            returns = jittered_returns(self.slipping, point, self.plan.jitters, (game, step))
        simulator.restore(point.snapshot)
        judged = repeatable(plain, returns, own)
        space = simulator.env.action_space
        return {
            "game": game,
            "step": step,
            "proxy": float(proxy_values(self.proxy, scores[None], action_space=space)[0]),
            "criticality": float(plain[own] - plain.mean()),
            **asdict(judged),
        }


def main() -> None:
    """Read the command line and measure until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent with a stored study")
    parser.add_argument("--studies", type=Path, default=HERE / "studies", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=20, help="default 20; whole games")
    parser.add_argument("--games", type=positive, default=10_000, help="no more than this many")
    parser.add_argument("--lookahead", type=positive, default=150, metavar="STEPS")
    parser.add_argument("--jitters", type=positive, default=6, help="default 6")
    parser.add_argument("--epsilon", type=float, default=0.05, help="default 0.05")
    parser.add_argument("--per-game", type=positive, default=12, help="decisions; default 12")
    parser.add_argument("--within", type=positive, default=1500, metavar="STEPS")
    options = parser.parse_args()
    plan = Plan(
        options.lookahead, options.jitters, options.epsilon, options.per_game, options.within
    )
    with in_a_sentence(parser):
        measure(stored_study(options.studies, options.agent), plan, options)


def measure(study: StoredStudy, plan: Plan, options: argparse.Namespace) -> None:
    """Measure game by game, and keep what is finished."""
    kept = study.beside(RESULT, "plan", "decisions")
    if kept is not None and kept["plan"] != asdict(plan):
        raise Refused(
            f"{study.folder / RESULT} was measured with another plan, {kept['plan']}; move it away"
        )
    decisions: list[dict[str, Any]] = list(kept["decisions"]) if kept else []
    measurer, until = Measurer(study, plan), time.monotonic() + 60 * options.minutes
    game = max((one["game"] for one in decisions), default=-1) + 1
    while time.monotonic() < until and game < options.games:
        decisions += [
            {name: round(value, 5) if isinstance(value, float) else value
             for name, value in one.items()}
            for one in measurer.game(game)
        ]  # fmt: skip
        study.put_beside(RESULT, {"plan": asdict(plan), "decisions": decisions})
        game += 1
    print(f"{len(decisions)} decisions of {game} games in {study.folder / RESULT}")


if __name__ == "__main__":
    main()
