"""Rankings of steps to attack, and how a budget of attacks is spent over a game."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.measured import RANDOM
from safemargin.core.records import Floats
from safemargin.criticality.batch import action_returns
from safemargin.criticality.coalescing import StateIndex
from safemargin.criticality.rollouts import Point, Runner
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.margins.learned.probe import LEARNED, Probe
from safemargin.policies.features import History
from safemargin.policies.proxies import Proxy, proxy_at, single_values
from safemargin.study.learning import stored_probe
from safemargin.study.study import Study

LOT, MARGIN, CRITICALITY = "lot", "margin", "criticality"


class Spending(Protocol):
    """Says at each step of a game with what chance it is attacked."""

    def chance(self, value: float, step: int, struck: int) -> float:
        """Return it, given the step's value, its number, and how many were attacked before it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Attacks above a threshold, and at it with a chance."""

    threshold: float
    equal: float
    """The chance at the threshold."""

    @classmethod
    def for_budget(cls, values: Floats, budget: float) -> Rule:
        """Return the rule that attacks this share of the steps with these values."""
        return cls.for_sorted(np.sort(values), budget)

    @classmethod
    def for_sorted(cls, ascending: Floats, budget: float) -> Rule:
        """Return the same for values that ascend."""
        count, wanted = len(ascending), budget * len(ascending)
        threshold = float(ascending[-1 - min(int(wanted), count - 1)])
        from_here, beyond = (
            int(np.searchsorted(ascending, threshold, side)) for side in ("left", "right")
        )
        return cls(threshold, min((wanted - (count - beyond)) / (beyond - from_here), 1.0))

    def weights(self, values: Floats) -> Floats:
        """Return the chance that each step is attacked."""
        return np.where(
            values > self.threshold, 1.0, np.where(values == self.threshold, self.equal, 0.0)
        )

    def chance(self, value: float, step: int, struck: int) -> float:
        """Return the chance that a step with this value is attacked, whatever was before."""
        return float(self.weights(np.array([value]))[0])


@dataclass(frozen=True, eq=False)
class Purse:
    """A fixed number of attacks for a game that is about so long, spent where values are high.

    At each step, as large a share of the highest values is attacked as there are attacks left for
    the steps left. So a game that comes to high values more often than the study did spends no
    more, and one that seldom does lowers the bar: rankings differ in where they attack alone.
    """

    ascending: Floats
    """The values of the steps that the ranking was seen to give, sorted."""
    attacks: int
    steps: int

    def chance(self, value: float, step: int, struck: int) -> float:
        """Return the chance that this step is attacked."""
        attacks, steps = self.attacks - struck, self.steps - step
        if attacks <= 0:
            return 0.0
        if attacks >= steps:
            return 1.0
        return Rule.for_sorted(self.ascending, attacks / steps).chance(value, step, struck)

    def __str__(self) -> str:
        values = hashlib.sha256(self.ascending.tobytes()).hexdigest()[:16]
        return f"{self.attacks} of {self.steps} by {values}"


class Ranking:
    """A number for each step, the higher the better to attack; this one is lot."""

    name = LOT

    def begin(self) -> None:
        """Forget the game before."""

    def along(self, study: Study) -> Iterator[tuple[Floats, int, int | None]]:
        """Yield values along natural episodes, [steps], their opening and measured step."""
        for trace in study.store.proxy_traces(study.default_proxy):
            if trace.key.phase == "natural":
                yield self._of(trace.values), trace.opening, trace.moment_step

    def _of(self, values: Floats) -> Floats:
        return 0 * single_values(values)

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        """Return the value of the step that the runner's simulator is at."""
        return 0.0


class ByProxy(Ranking):
    """A proxy of the scores."""

    def __init__(self, proxy: Proxy) -> None:
        self.name, self._proxy = proxy.name, proxy
        if proxy.history:
            raise InvalidInput(
                f"an attack sees the scores alone, and the proxy {proxy.name!r} looks at "
                "observations; leave it out with --by"
            )

    def along(self, study: Study) -> Iterator[tuple[Floats, int, int | None]]:
        for trace in study.store.proxy_traces(self._proxy.name):
            if trace.key.phase == "natural":
                yield self._of(trace.values), trace.opening, trace.moment_step

    def _of(self, values: Floats) -> Floats:
        return single_values(values)

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        space = runner.simulator.env.action_space
        n_values = runner.settings.n_values
        found = proxy_at(self._proxy, row, n_values=n_values, action_space=space, step=step)
        return float(np.ravel(found)[0])


class ByMargin(ByProxy):
    """The lowest margin first."""

    def __init__(self, proxy: Proxy, study: Study, confidence: float, tolerance: float) -> None:
        super().__init__(proxy)
        self.name, self._tolerance = MARGIN, tolerance
        self._margins = study.fit(confidence, proxy=proxy.name)

    def _of(self, values: Floats) -> Floats:
        found = self._margins.lookup(single_values(values), self._tolerance).margin
        return -np.asarray(found, np.float64)

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        return float(self._of(np.array([super().now(runner, row, hidden, step)]))[0])


class ByLearned(Ranking):
    """The study's learned proxy."""

    name = LEARNED

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.begin()

    def begin(self) -> None:
        self._history = History(self._probe.kind, 1)

    def along(self, study: Study) -> Iterator[tuple[Floats, int, int | None]]:
        for trace in study.store.proxy_traces(LEARNED):
            if trace.key.phase == "natural":
                yield trace.values, trace.opening, trace.moment_step

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        values, _ = self._probe(self._history.add(row[None], hidden))
        return float(values[0])


class ByCriticality(Ranking):
    """What one random action costs here, found by trying every action at every step of a game."""

    name = CRITICALITY

    def __init__(self, study: Study) -> None:
        settings, found = study.settings, study.diagnosis
        usual = settings.perturb == RANDOM and settings.reference is None
        certain = found["environment_deterministic"] and found["policy_deterministic"]
        if not (usual and 1 in settings.n_values and certain and found["way"] == "snapshot"):
            raise InvalidInput(
                f"--by {CRITICALITY} tries every action at every step, which takes a study of "
                "random actions with n = 1 in a deterministic environment with snapshots, and a "
                f"greedy policy; the one in {study.path} is not of that kind"
            )

    def along(self, study: Study) -> Iterator[tuple[Floats, int, int | None]]:
        """Yield what was measured: one value in each episode, or none."""
        losses = {
            key: one.estimate.mean
            for key, one in study.store.all_measurements()
            if one.estimate.n == 1
        }
        for key in study.store.episode_outlines():
            if key.phase == "natural":
                held = [losses[key]] if key in losses else []
                yield np.array(held), 0, 0 if held else None

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        simulator, space = runner.simulator, runner.simulator.env.action_space
        if not isinstance(space, gym.spaces.Discrete) or simulator.mask is not None:
            raise InvalidInput(f"--by {CRITICALITY} takes discrete actions that are always legal")
        if runner.policy.initial_memory(1) is not None:
            raise InvalidInput(f"--by {CRITICALITY} takes a policy without a memory")
        point = Point(simulator.save(), None)
        shared = StateIndex(runner.settings.horizon) if simulator.digest_is_whole else None
        returns = action_returns(runner, point, shared)
        simulator.restore(point.snapshot)
        own = int(runner.choose(row, None, None)) - int(space.start)
        return float(returns[own] - returns.mean())


def make_rankings(
    study: Study,
    by: Sequence[str] | None,
    confidence: float,
    tolerance: float,
    proxies: Mapping[str, Proxy],
) -> list[Ranking]:
    default = study.default_proxy
    learned = [LEARNED] * (LEARNED in study.proxies)
    known = [LOT, *proxies, MARGIN, *learned, CRITICALITY]
    found: list[Ranking] = []
    for name in by or [LOT, default, MARGIN, *learned]:
        if name == LOT:
            found.append(Ranking())
        elif name == MARGIN:
            found.append(ByMargin(proxies[default], study, confidence, tolerance))
        elif name == CRITICALITY:
            found.append(ByCriticality(study))
        elif name == LEARNED and learned:
            found.append(ByLearned(stored_probe(study.store)))
        elif name in proxies:
            found.append(ByProxy(proxies[name]))
        else:
            raise InvalidInput(f"there is no ranking {name!r}; {did_you_mean(name, known)}")
    return found
