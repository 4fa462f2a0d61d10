"""Loss capture: how many deaths lie among the decisions that a proxy, or a margin, would pick.

The death of an episode is its last decision. A budget is a share of all decisions of the episodes;
those with the highest proxies (the lowest margins) are looked at first. Which of equally
ranked decisions are looked at is left to chance, and counted as an expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats

BUDGETS = np.linspace(0, 1, 201)
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Capture:
    """The share of deaths captured at each budget, with a 95 % band over episodes."""

    share: Floats  # [budgets]
    low: Floats  # [budgets]
    high: Floats  # [budgets]
    deaths: int

    def at(self, budget: float) -> tuple[float, float, float]:
        """Share, lower and upper end of the band."""
        return tuple(  # type: ignore[return-value]
            float(np.interp(budget, BUDGETS, values))
            for values in (self.share, self.low, self.high)
        )


def margin_rank(margins: Floats, proxies: Floats, every_proxy: Floats) -> Floats:
    """Ranks decisions as `safemargin highlights` does: lowest margin, then highest proxy, first.

    `every_proxy` are the proxies of all decisions, sorted.
    """
    lower = np.searchsorted(every_proxy, proxies) / (len(every_proxy) + 1)  # below 1
    ranks: Floats = lower - np.asarray(margins, dtype=float)
    return ranks


def capture(ranks: Sequence[Floats], died: Sequence[bool], seed: int = 0) -> Capture:
    """Compute it from the rank of each decision, [steps] for each episode; high ones come first."""
    rng = np.random.default_rng(seed)
    deaths = np.flatnonzero(died)
    last = np.array([ranks[index][-1] for index in deaths])
    ordered = [np.sort(values) for values in ranks]
    steps = np.array([len(values) for values in ranks])  # [episodes]
    # How many decisions of each episode rank above each death, and above or beside it.
    above, beside = (
        steps - np.stack([np.searchsorted(values, last, side) for values in ordered], axis=1)
        for side in ("right", "left")
    )  # [deaths, episodes]

    def curve(times: np.ndarray) -> Floats:
        """Compute it with each episode counted this many times."""
        counted = times[deaths]
        if not counted.any():
            return np.full(len(BUDGETS), np.nan)
        low, high = above @ times / (steps @ times), beside @ times / (steps @ times)  # [deaths]
        caught = (BUDGETS[:, None] - low) / np.maximum(high - low, 1e-12)  # [budgets, deaths]
        shares: Floats = np.clip(caught, 0, 1) @ counted / counted.sum()
        return shares

    drawn = rng.integers(len(ranks), size=(RESAMPLES, len(ranks)))
    curves = [curve(np.bincount(chosen, minlength=len(ranks))) for chosen in drawn]
    low, high = np.quantile(curves, [0.025, 0.975], axis=0)
    return Capture(curve(np.ones(len(ranks), int)), low, high, len(deaths))
