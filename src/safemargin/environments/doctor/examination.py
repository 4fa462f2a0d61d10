"""One environment under examination: how to make and explore it, and the findings so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.core.settings import Settings
from safemargin.environments.doctor.diagnosis import Diagnosis, Finding, Level
from safemargin.environments.doctor.exploration import Explorer
from safemargin.environments.simulator import Simulator, Way
from safemargin.environments.ways import make_simulator
from safemargin.policies.base import Policy


@dataclass(eq=False)
class Examination:
    """What the doctor's checks share, and what they have found out so far."""

    make_env: Callable[[], gym.Env[Any, Any]]
    policy: Policy | None
    settings: Settings
    seed: int
    asked_way: Way | None

    def __post_init__(self) -> None:
        self.generator = stream(self.seed, Purpose.DOCTOR, 0)
        self._simulators: list[Simulator] = []
        self._findings: list[Finding] = []
        self.name = "the environment"
        self.way: Way | None = None
        self.environment_deterministic = True
        self.hiding_places: list[str] = []
        """Parts in which a random generator would be out of reach."""
        self.policy_deterministic: bool | None = None
        self.opaque: tuple[str, ...] = ()
        self.continuations = self.wrong = 0
        self.distinct = self.tried = 0
        self.mean_return: float | None = None
        self.unlike_training: str | None = None

    @property
    def snapshot_failure(self) -> Level:
        """How bad it is if there is no snapshot: a problem only where no replay may follow."""
        return "note" if self.asked_way is None else "problem"

    def add(self, level: Level, text: str) -> None:
        """Add a finding."""
        self._findings.append(Finding(level, text))

    def close(self) -> None:
        """Close every environment that was made."""
        for simulator in self._simulators:
            simulator.close()

    def simulator(self, way: Way = "snapshot", *, without: int = 0) -> Simulator:
        """Make a new environment, without this many of its outermost layers."""
        env = self.make_env()
        for _ in range(without):
            env = env.env  # type: ignore[attr-defined]
        simulator = make_simulator(env, way)
        self._simulators.append(simulator)
        return simulator

    def seeds(self) -> Iterator[int]:
        """Yield seeds for resets, the same ones at each call."""
        return (environment_seed(self.seed, 1_000_000, index) for index in itertools.count())

    def explorer(self, simulator: Simulator, *, random_share: float = 0.3) -> Explorer:
        """Return an explorer that replaces this share of the policy's actions by random ones."""
        return Explorer(simulator.env, self.policy, self.seed, random_share=random_share)

    def diagnosis(self) -> Diagnosis:
        """Sum up the findings."""
        problems = [finding.text for finding in self._findings if finding.level == "problem"]
        measurable = self.way is not None and not problems
        return Diagnosis(
            measurable=measurable,
            way=self.way if measurable else None,
            environment_deterministic=self.environment_deterministic,
            policy_deterministic=self.policy_deterministic,
            distinct_starts=self.distinct,
            starts_tried=self.tried,
            continuations=self.continuations,
            wrong=self.wrong,
            opaque=self.opaque,
            findings=tuple(self._findings),
            verdict=self._praise() if measurable else self._refusal(problems),
            mean_return=self.mean_return,
            unlike_training=self.unlike_training,
            asked_way=self.asked_way,
        )

    def _praise(self) -> str:
        kind = "deterministic" if self.environment_deterministic else "random"
        if self.environment_deterministic and self.hiding_places:
            kind = "taken as deterministic"
        return (
            f"{self.name} can be measured by {self.way}: all {self.continuations} restored runs "
            f"equal the uninterrupted one; the environment is {kind}"
        )

    def _refusal(self, problems: list[str]) -> str:
        texts = [finding.text for finding in self._findings]
        leaks = [text for text in texts if "the layer that leaks" in text]
        unique = dict.fromkeys([*leaks, *problems])
        reasons = "; ".join(text.removeprefix(f"{self.name}: ") for text in unique)
        return f"{self.name} cannot be measured: {reasons or 'no way back was found'}"
