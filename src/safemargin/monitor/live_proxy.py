"""The proxy of the margins, computed at each decision from the policy's scores alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.learned.probe import Probe
from safemargin.margins.lookup import Margins
from safemargin.policies.features import History
from safemargin.policies.proxies import PROXIES, Proxy, log_prob_range, q_range

_PLACEHOLDER = Proxy("learned", lambda *_: 0.0, ("q",))
"""Stands where a learned proxy has no function of the scores alone."""


class _Learned:
    """A learned proxy with the short history that it looks at."""

    def __init__(self, margins: Margins) -> None:
        assert margins.probe is not None
        self.probe = margins.probe
        self._above = float(np.nextafter(margins.highest_proxy, np.inf))
        self._history: History | None = None

    def __call__(
        self, scores: npt.NDArray[Any], features: npt.NDArray[np.float32] | None
    ) -> Floats:
        """Return the value of each agent, [agents].

        Where its features are unlike anything measured, it is just above the highest measured
        value, so that the margin is 0; NaN where it or a score or feature is not finite.
        """
        agents, width = len(scores), self.probe.hidden_width
        if features is None:
            features = np.zeros((agents, 0), np.float32)
        if features.shape != (agents, width):
            raise InvalidInput(
                f"these margins use a learned proxy, which needs features: the policy's last "
                f"hidden layer (and value), {width} numbers for each agent, got shape "
                f"{list(features.shape)}; take them from policy.features(observations), and pass "
                "monitor.step(scores, features=…)"
            )
        if self._history is None:
            self._history = History(self.probe.kind, agents)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite becomes NaN below
            usable: Any = True
            if not math.isfinite(float(features.sum()) + float(scores.sum())):  # seldom
                usable = np.isfinite(features).all(axis=1)
                usable &= np.isfinite(scores.reshape(agents, -1)).all(axis=1)
                scores, features = np.nan_to_num(scores), np.nan_to_num(features)
            inputs = self._history.add(scores, features)
            if inputs.shape[1] != self.probe.inputs:
                raise InvalidInput(
                    f"the learned proxy of these margins takes {self.probe.inputs} numbers at each "
                    f"moment, and these scores and features give {inputs.shape[1]}; pass the "
                    "scores of the policy that the margins were fitted for"
                )
            values, outside = self.probe(inputs)
        if outside.any():
            values = np.where(outside, np.maximum(values, self._above), values)
        return np.where(usable & np.isfinite(values), values, np.nan)

    def forget(self, agents: Sequence[int]) -> None:
        if self._history is not None:
            self._history.forget(agents)


class LiveProxy:
    """Turns each agent's scores into one number; NaN or infinite where the scores are."""

    def __init__(self, margins: Margins, action_space: Any = None) -> None:
        name = margins.proxy
        self._learned = None if margins.probe is None else _Learned(margins)
        if margins.bound.looks_at_n:
            raise InvalidInput(
                f"the proxy {name!r} looks at n; a monitor needs one that takes only the scores"
            )
        if self._learned is None and name not in PROXIES:
            raise InvalidInput(
                f"the margins use the proxy {name!r}, which is unknown here; register it first "
                "(safemargin.register_proxy)"
            )
        self._proxy = PROXIES.get(name, _PLACEHOLDER)
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

    @property
    def probe(self) -> Probe | None:
        """The model behind a learned proxy, which needs features beside the scores."""
        return None if self._learned is None else self._learned.probe

    def learned(
        self, scores: npt.NDArray[Any], features: npt.ArrayLike | None, *, single: bool
    ) -> Floats:
        """Return a learned proxy of each agent, [agents]; scores have no axis for a single one."""
        assert self._learned is not None
        given = None if features is None else np.asarray(features, dtype=np.float32)
        if single:
            scores, given = scores[None], None if given is None else given[None]
        return self._learned(scores, given)

    def forget(self, agents: Sequence[int]) -> None:
        """Start the history of these agents anew."""
        if self._learned is not None:
            self._learned.forget(agents)

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
