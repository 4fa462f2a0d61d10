"""Does supervision help in LunarLander? A lookahead acts in a few decisions.

    python reproduction/supervise_lander.py lander.onnx --rankings regret.json stakes.json

As in supervise.py, what differs is who chooses these decisions; here every strategy takes the same
share of each game, because its threshold falls while it has looked too seldom. Box2D cannot be
copied, so the overseer plays the game again up to the decision, once for every action. Results go
to lander_supervision.json; run it again to go on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from lander import make
from looking import Looker, Notes
from stored import Refused, positive, read_json

import safemargin as sm
from safemargin.core.files import written_whole
from safemargin.core.records import Floats
from safemargin.margins import Ranking
from safemargin.policies.base import Policy
from safemargin.policies.features import History, with_value
from safemargin.policies.proxies import PROXIES, proxy_values

HERE = Path(__file__).parent
RESULT = HERE / "lander_supervision.json"

GAMMA, LOOKAHEAD = 0.99, 150
PROXY = "log_prob_range"
PILOT_GAMES, PILOT_EVERY = 16, 20
"""Thresholds come from this many other games; true regret from one decision out of this many."""
FIRST_SEED, FIRST_PILOT = 7_000_000, 8_000_000
STRATEGIES = ("nobody", "random", "proxy", "stakes", "regret", "gain", "always")
SHARES = {"nobody": 0.0, "always": 1.0}
"""Shares of decisions looked at, whatever the budget."""
MEASURED = ("gain", "always")
"""Strategies that ask the lookahead at every decision."""


@dataclass(frozen=True)
class Flight:
    """One game under one strategy."""

    decisions: int
    reward: float
    crashed: bool
    looked_at: int
    overruled: int


class Pilot:
    """The agent, what rankings say of its decisions, and the lookahead that may act for it."""

    def __init__(self, policy: Policy, rankings: Mapping[str, Ranking]) -> None:
        self.policy, self.rankings = policy, rankings
        self._env = make()
        self._others = [make() for _ in range(int(self._env.action_space.n))]  # type: ignore[attr-defined]  # of a discrete space

    def fly(self, look: Callable[..., bool], seed: int) -> Flight:
        """Play one game; `look(values, gain)` says whether the overseer looks at a decision."""
        env, taken = self._env, list[int]()
        observation, _ = env.reset(seed=seed)
        history = History(self.policy.kind, 1)
        reward = looked_at = overruled = 0.0
        while True:
            found = self.policy.features(observation[None])
            own = int(found.scores[0].argmax())
            inputs = history.add(found.scores, with_value(found))
            values = {name: float(each.probe(inputs)[0][0]) for name, each in self.rankings.items()}
            values["proxy"] = float(
                proxy_values(PROXIES[PROXY], found.scores, action_space=env.action_space)[0]
            )

            @cache  # asked for twice where it decides who looks
            def gain(own: int = own) -> tuple[float, int]:
                """Return what the best action gains over the agent's own, and that action."""
                returns = self.returns(seed, taken)
                best = int(returns.argmax())
                return float(returns[best] - returns[own]), best

            action = own
            if look(values, gain):
                looked_at += 1
                more, best = gain()
                if more > 1e-9:
                    action, overruled = best, overruled + 1
            taken.append(action)
            observation, earned, terminated, truncated, _ = env.step(action)
            reward += float(earned)
            if terminated or truncated:
                crashed = bool(terminated and earned <= -100)
                return Flight(len(taken), round(reward, 3), crashed, int(looked_at), int(overruled))

    def returns(self, seed: int, taken: list[int]) -> Floats:
        """Return the discounted return of each action here, the agent acting after it, [actions].

        `taken`: the actions up to here.
        """
        returns = np.zeros(len(self._others))
        flying: dict[int, Any] = {}
        for action, env in enumerate(self._others):
            env.reset(seed=seed)
            for earlier in taken:
                env.step(earlier)
            flying[action] = action
        for step in range(LOOKAHEAD):
            if not flying:
                break
            seen = {}
            for first, action in flying.items():
                observation, reward, terminated, truncated, _ = self._others[first].step(action)
                returns[first] += GAMMA**step * float(reward)
                if not (terminated or truncated):
                    seen[first] = observation
            flying = {}
            if seen:
                scores, _ = self.policy.scores(np.stack(list(seen.values())))
                flying = dict(zip(seen, scores.argmax(axis=1).tolist(), strict=True))
        return returns


def references(pilot: Pilot, *, gains: bool) -> dict[str, list[float]]:
    """Return every number at decisions of other games that the agent plays alone.

    `gains`: also what the lookahead gains, at some of them.
    """
    notes = Notes(PILOT_EVERY if gains else 0)
    for game in range(PILOT_GAMES):
        pilot.fly(notes, FIRST_PILOT + game)
    return notes.found


def main() -> None:
    """Read the command line and play what is not yet there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", metavar="POLICY", help="the agent")
    parser.add_argument(
        "--rankings", nargs="+", type=Path, default=[], metavar="FILE",
        help="what `safemargin learn --target … -o FILE` wrote; without: no learned rankings",
    )  # fmt: skip
    parser.add_argument("--output", "-o", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--games", type=positive, default=32, help="of each strategy (default 32)")
    parser.add_argument("--budget", type=float, default=0.05, help="default 0.05")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no game after these")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    options = parser.parse_args()
    if not 0 < options.budget < 1:
        parser.error(f"--budget must lie between 0 and 1, got {options.budget:g}")
    policy = sm.load_policy(options.policy)
    rankings = {each.target: each for each in map(Ranking.load, options.rankings)}
    try:
        supervise(Pilot(policy, rankings), options)
    except Refused as error:
        parser.error(str(error))


def supervise(pilot: Pilot, options: argparse.Namespace) -> None:
    """Play the games that were not played yet, and keep each that is finished."""
    path, until = options.output, time.monotonic() + 60 * options.minutes
    about = {"policy": pilot.policy.identity, "lookahead": LOOKAHEAD}
    if path.exists():
        kept = read_json(path, "about", "references", "played")
        if kept["about"] != about:
            raise Refused(f"{path} is about other games, {kept['about']}; move it away first")
    else:
        kept = {"about": about, "references": {}, "played": []}
    if not {"proxy", "gain", *pilot.rankings} <= kept["references"].keys():
        kept["references"] |= references(pilot, gains="gain" not in kept["references"])
    names = ("strategy", "budget", "game")
    there = {tuple(one[name] for name in names) for one in kept["played"]}
    for game in range(options.games):
        for strategy in options.strategies:
            ranked = strategy in MEASURED or strategy in ("nobody", "random", "proxy")
            task = strategy, SHARES.get(strategy, options.budget), game
            if task in there or not (ranked or strategy in pilot.rankings):
                continue
            if time.monotonic() > until:
                return
            number = STRATEGIES.index(strategy), game
            look = Looker(*task[:2], np.array(kept["references"].get(strategy, [0.0])), number)
            flight = asdict(pilot.fly(look, FIRST_SEED + game))
            kept["played"].append({**dict(zip(names, task, strict=True)), **flight})
            with written_whole(path) as draft:
                draft.write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
