"""The proxy of the margins, computed at each decision from the policy's scores alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins
from safemargin.policies.proxies import PROXIES, log_prob_range, q_range


class LiveProxy:
    """Turns each agent's scores into one number; NaN or infinite where the scores are."""

    def __init__(self, margins: Margins, action_space: Any = None) -> None:
        name = margins.proxy
        if margins.bound.looks_at_n:
            raise InvalidInput(
                f"the proxy {name!r} looks at n; a monitor needs one that takes only the scores"
            )
        if name not in PROXIES:
            raise InvalidInput(
                f"the margins use the proxy {name!r}, which is unknown here; register it first "
                "(safemargin.register_proxy)"
            )
        self._proxy = PROXIES[name]
        if self._proxy.history:
            raise InvalidInput(
                f"the proxy {name!r} needs observations; a monitor needs one that takes only the "
                "scores"
            )
        gaussian = margins.policy.get("kind") == "gaussian"
        if gaussian and self._proxy.function is log_prob_range and action_space is None:
            raise InvalidInput(
                f"{name} of a Gaussian policy needs the bounds of its actions: pass action_space="
            )
        self._space = action_space
        self.dimensions = 2 if gaussian else 1
        """Number of dimensions of one agent's scores."""
        self.shapes = (
            "[2, dimensions] for one agent or [agents, 2, dimensions] for many"
            if gaussian
            else "[actions] for one agent or [agents, actions] for many"
        )
        # The paper's proxies, largest − smallest score, avoid NumPy's overhead.
        self._range = not gaussian and self._proxy.function in (q_range, log_prob_range)

    def one(self, scores: npt.NDArray[Any]) -> float:
        """Return the proxy of one agent's scores."""
        if self._range:
            row = scores.tolist()
            nothing = sum(row) * 0.0  # NaN if one of them is not finite, where max() might miss it
            proxy: float = max(row) - min(row) + nothing
            return proxy
        return float(self.many(scores[None])[0])

    def many(self, scores: npt.NDArray[Any]) -> Floats:
        """Return the proxies of many agents' scores, [agents]."""
        if self._range:
            # One row for each action: contiguous in memory, and in double precision.
            columns = scores.T.astype(np.float64, order="C")
            with np.errstate(invalid="ignore"):  # ∞ − ∞
                return np.asarray(columns.max(axis=0) - columns.min(axis=0))
        exact = scores.astype(np.float64)
        usable = np.isfinite(exact).all(axis=tuple(range(1, exact.ndim)))  # [agents]
        values = np.full(len(exact), np.nan)
        if not self._proxy.vectorised:
            for agent in np.flatnonzero(usable):
                values[agent] = float(self._proxy.function(exact[agent], [], None))
        elif usable.any():
            values[usable] = self._proxy.function(exact[usable], self._space)
        return values
