"""A sequential test of whether live proxies are distributed as when the margins were fitted.

One decision is drawn at random from each live episode, as it was from each episode behind the
margins. If live episodes are independent of one another and distributed like those, the bins
between the reference's order statistics are hit as balls are drawn from a Pólya urn: after t
episodes, bin b comes next with probability

    p(b) = (gaps of the reference in b + live hits of b) / (count + 1 + t),

exactly, for any distribution and any size of the reference. Several bettors name other
probabilities w(b) beforehand; a stake grows by w(b) / p(b), which is 1 on average as long as
nothing has changed. Their total wealth is a martingale that starts at 1, so the probability that it
*ever* reaches 1 / false_alarms is at most `false_alarms` (Ville 1939; conformal test martingales,
Vovk and others 2003). A change may come late, so stakes are placed little by little, for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.text import counted
from safemargin.errors import InvalidInput
from safemargin.margins.natural_proxies import NaturalProxies
from safemargin.monitor.reservoir import new_generator

BINS = 10
FEWEST_IN_A_BIN = 5
FEWEST_EPISODES = 2 * FEWEST_IN_A_BIN - 1
"""Fewest episodes behind the margins: with fewer there are not even two bins."""
TILTS = (-3.0, -1.0, 1.0, 3.0)
"""Bettors that expect lower or higher proxies: w(b) ∝ p(b) · exp(tilt · rank of b)."""
MEMORIES = (10.0, 40.0, 160.0)
"""Bettors that expect what they saw recently, over about this many episodes."""


@dataclass(frozen=True)
class Drift:
    """The state of the test."""

    watching: bool
    """False where the margins do not say (well enough) what proxies looked like."""
    fired: bool
    """The live proxies no longer fit: the guarantee of the margins is void."""
    evidence: float
    """The bettors' wealth: 1 at the start; the alarm goes off at 1 / false_alarms."""
    episodes: int
    """Live episodes so far."""
    false_alarms: float
    """The greatest probability that it ever fires although nothing has changed."""

    @property
    def why(self) -> str:
        """The state in one sentence."""
        if not self.watching:
            return (
                "the margins do not say, or from too few episodes, what proxies looked like when "
                "they were fitted, so drift cannot be noticed; fit again"
            )
        if self.fired:
            return (
                f"after {counted(self.episodes, 'episode')} the proxies no longer fit those the "
                f"margins were fitted on (evidence {self.evidence:.3g} : 1), so their guarantee "
                "is void"
            )
        episodes = counted(self.episodes, "episode")
        return f"no sign of drift in {episodes} (evidence {self.evidence:.3g} : 1)"


class DriftTest:
    """Bets against 'nothing has changed', with one value of each live episode."""

    def __init__(
        self, natural: NaturalProxies, *, false_alarms: float = 0.01, seed: int | None = None
    ) -> None:
        if not 0 < false_alarms < 1:
            raise InvalidInput(f"false_alarms must lie between 0 and 1, got {false_alarms}")
        self.false_alarms = false_alarms
        self.fired = False
        self.episodes = 0
        edges = _edges(natural)
        self._values = natural.values[edges]  # [bins − 1]
        self._ties = natural.ties[edges]  # [bins − 1]
        ranks = np.concatenate([[0], natural.ranks[edges], [natural.count + 1]])
        self._urn = np.diff(ranks).astype(np.float64)  # [bins] gaps, then hits as well
        self._start = self._urn / self._urn.sum()  # [bins]
        middles = np.cumsum(self._start) - self._start / 2 - 0.5  # [bins] from −½ to ½
        self._tilts = np.exp(np.outer(TILTS, middles))  # [tilts, bins]
        self._keep = 1 - 1 / np.array(MEMORIES)  # [memories]
        self._seen = np.zeros((len(MEMORIES), len(self._urn)))  # [memories, bins] fading hits
        self._wealth = np.zeros(len(TILTS) + len(MEMORIES))  # [bettors] what is at stake
        self._cash = 1.0
        self._evidence = 1.0
        self._random = new_generator(1, seed)

    @property
    def state(self) -> Drift:
        return Drift(True, self.fired, self._evidence, self.episodes, self.false_alarms)

    def add(self, value: float) -> bool:
        """Add the proxy at a random decision of an episode; return whether the alarm is on."""
        if self.fired:
            return True
        hit = self._bin(value)
        self.episodes += 1
        expected = self._urn / self._urn.sum()  # [bins]
        left = math.log(2) / math.log(self.episodes + 2)  # slowly: a change may come late
        self._wealth += self._cash - left
        self._cash = left
        self._wealth *= self._bets(expected)[:, hit] / expected[hit]
        self._urn[hit] += 1
        self._seen *= self._keep[:, None]
        self._seen[:, hit] += 1
        self._evidence = float(self._wealth.mean() + self._cash)
        self.fired = self._evidence >= 1 / self.false_alarms
        return self.fired

    def _bets(self, expected: Floats) -> Floats:
        """Return what each bettor expects, [bettors, bins]; rows add up to 1."""
        tilted = self._tilts * expected
        tilted /= tilted.sum(axis=1, keepdims=True)
        # As many imagined hits as bins, spread as at the start, keep every bet above 0.
        learned = self._seen + len(expected) * self._start
        learned /= learned.sum(axis=1, keepdims=True)
        return np.concatenate([tilted, learned])

    def _bin(self, value: float) -> int:
        """Return the bin of a value; ties with an edge are broken at random."""
        low = int(np.searchsorted(self._values, value, side="left"))
        high = int(np.searchsorted(self._values, value, side="right"))
        if low < high:
            return low + int((self._ties[low:high] < self._random.random()).sum())
        return low


def _edges(natural: NaturalProxies) -> list[int]:
    """Return which order statistics separate the bins, so that bins are as equal as possible."""
    bins = min(BINS, (natural.count + 1) // FEWEST_IN_A_BIN)
    if bins < 2:
        raise InvalidInput(
            f"noticing drift takes {FEWEST_EPISODES} episodes behind the margins, there are "
            f"{natural.count}"
        )
    wanted = np.arange(1, bins) * (natural.count + 1) / bins
    return sorted({int(np.abs(natural.ranks - rank).argmin()) for rank in wanted})
