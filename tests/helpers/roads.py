"""A road with known truth, played by agents that differ in a known way, as a gate sees them.

Each game has a risk r = u³. A mistake costs r times the agent's `exposure`, and the agent itself
makes one with probability `slips` at each of its 24 steps. So c_n = exposure · r · (½ − slips) ·
(1 − γⁿ) / (1 − γ), and the mean return is −24 · slips · exposure / 4.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from safemargin.core.settings import Settings
from safemargin.validation.baseline import Baseline

LENGTH, GAMMA, N_VALUES = 24, 0.9, (1, 2, 4, 8)
SETTINGS = Settings(gamma=GAMMA, n_values=N_VALUES, trials=16)
LONG = np.array([(1 - GAMMA**n) / (1 - GAMMA) for n in N_VALUES])  # [n]


@dataclass(frozen=True)
class Walker:
    """An agent on the road."""

    exposure: float = 1.0
    slips: float = 0.02

    @property
    def mean_return(self) -> float:
        return -LENGTH * self.slips * self.exposure / 4

    def mean_affordable(self, tolerance: float) -> float:
        """The mean of the largest n with c_n ≤ tolerance: n is afforded where r is small enough."""
        limits = tolerance / (self.exposure * (0.5 - self.slips) * LONG)  # [n]
        chances = np.minimum(limits, 1) ** (1 / 3)  # P(u³ ≤ limit)
        return float((np.diff([0, *N_VALUES]) * chances).sum())


def study(walker: Walker, seed: int, *, natural: int = 100, spread: int = 50) -> Baseline:
    """What a gate knows of a finished study of this walker; the same seed gives the same roads."""
    rng = np.random.default_rng(seed)
    games = 2 * max(natural, spread)  # the first draws do not depend on how many are asked for
    parts = []
    for count in (natural, spread):
        risk = rng.random(games) ** 3
        blur = 0.2 * rng.normal(size=games)
        slip = rng.random((games, LENGTH))
        parts.append((risk[:count], blur[:count], slip[:count]))
    risk, blur = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    scale = walker.exposure * (0.5 - walker.slips)
    slips = (parts[0][2] < walker.slips).sum(axis=1)
    return Baseline(
        source=f"runs/{seed}",
        proxy="log_prob_range",
        versions={"safemargin": "0.1.0"},
        environment={"name": "road", "identity": "sha256:road", "arguments": {}},
        policy={"description": str(walker), "identity": f"sha256:{walker}", "kind": "logits"},
        settings=json.loads(json.dumps({**asdict(SETTINGS), "seed": seed})),
        game_numbers=np.arange(natural),
        game_seeds=rng.integers(2**31, size=games)[:natural],
        returns=-walker.exposure * parts[0][0] * slips,
        natural=np.arange(natural + spread) < natural,
        games=np.concatenate([np.arange(natural), np.arange(spread)]),
        lives=np.zeros(natural + spread, np.int64),
        steps=np.zeros(natural + spread, np.int64),
        groups=np.arange(natural + spread),
        proxies=risk + blur,
        losses=scale * risk[:, None] * LONG,
    )
