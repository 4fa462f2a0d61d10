"""Looks at an equal share of each game's decisions, whatever decides which ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from safemargin.core.records import Floats

AHEAD = 3.0
"""The wanted share doubles for each look too few, and halves for each too many, up to this many."""


class Notes:
    """Looks at nothing, and keeps every number at the decisions of other games.

    What the lookahead gains is kept at one decision out of `gain_every`; 0: never.
    """

    def __init__(self, gain_every: int) -> None:
        self.found: dict[str, list[float]] = {}
        self._gain_every, self._decided = gain_every, 0

    def __call__(self, values: Mapping[str, float], gain: Callable[[], tuple[float, int]]) -> bool:
        """Note a decision."""
        for name, value in values.items():
            self._keep(name, value)
        if self._gain_every and self._decided % self._gain_every == 0:
            self._keep("gain", gain()[0])
        self._decided += 1
        return False

    def _keep(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(float(f"{value:.5g}"))


class Looker:
    """Looks at the decisions of a game that are highest by one number, and at no more than that."""

    def __init__(
        self, strategy: str, budget: float, reference: Floats, seed: tuple[int, int]
    ) -> None:
        """`reference`: that number at decisions of other games; `seed`: of strategy and game."""
        self._strategy, self._budget, self._reference = strategy, budget, reference
        self._rng = np.random.default_rng(seed)
        self._decided = self._looked = 0

    def __call__(self, values: Mapping[str, float], gain: Callable[[], tuple[float, int]]) -> bool:
        """Whether to look at a decision."""
        if self._strategy in ("nobody", "always"):
            return self._strategy == "always"
        due = self._budget * self._decided - self._looked
        share = self._budget * 2**due if due > -AHEAD else 0.0
        self._decided += 1
        if self._strategy == "random":
            looks = bool(self._rng.random() < share)
        else:
            value = gain()[0] if self._strategy == "gain" else values[self._strategy]
            above, beside = (self._reference > value).mean(), (self._reference == value).mean()
            looks = bool(above + beside * self._rng.random() < share)
        self._looked += looks
        return looks
