"""Regret and stakes of a study's measured moments, derived from the returns that it stores."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.measured import RANDOM, mistakes_in_words
from safemargin.core.records import EpisodeKey, Floats, Measurement
from safemargin.criticality.plans import Planner
from safemargin.criticality.regret import How, Regret, regret_of
from safemargin.errors import StudyIncomplete
from safemargin.policies.actions import RandomActions
from safemargin.study.store import Store
from safemargin.validation.capture import SHARES, captured


class RegretReader:
    """Derives the regret of measured moments from a study's raw returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = store.settings()
        self._kind = store.meta("policy")["kind"]
        self._masked = bool(store.meta("environment").get("masked"))
        diagnosis = store.meta("diagnosis")
        self._random = not (
            diagnosis["environment_deterministic"] and diagnosis["policy_deterministic"]
        )
        self._actions: int | None = None

    def of(self, key: EpisodeKey, step: int, measurement: Measurement) -> Regret | None:
        """Return the regret of one (moment, n); None where its trials cannot show one."""
        if self._settings.perturb != RANDOM or self._settings.reference is not None:
            return None
        first = None
        if self._random and measurement.estimate.n == 1 and self.refusal is None:
            first = self._first_actions(key, step, len(measurement.perturbed))
        return regret_of(measurement, random=self._random, first_actions=first)

    @property
    def refusal(self) -> str | None:
        """Why no moment of the study can have a regret; None if they can."""
        if self._settings.perturb != RANDOM:
            return (
                "regret and stakes compare the agent's action with all others, and the trials of "
                f"the study in {self._store.folder} take "
                f"{mistakes_in_words(self._settings.perturb)}; collect one without --perturb"
            )
        if self._settings.reference is not None:
            return (
                "regret and stakes are about what the agent itself goes on to do, and in the study "
                f"in {self._store.folder} reference {self._settings.reference!r} acts after the "
                "first action; collect one without --reference"
            )
        if 1 not in self._settings.n_values:
            return (
                "regret and stakes compare single actions, and the study in "
                f"{self._store.folder} measures n = "
                f"{', '.join(map(str, self._settings.n_values))} only; collect one with n = 1"
            )
        if self._random and self._kind not in ("q", "logits"):
            return (
                "regret cannot be had here: the actions cannot be enumerated, and as something "
                "else is random, the best of a few would be the luckiest; it takes discrete "
                "actions, or a deterministic environment and policy"
            )
        if self._random and self._masked:
            return (
                "regret cannot be had here: something is random, and the study does not say which "
                "of the actions that the mask allows each trial began with"
            )
        return None

    def _first_actions(self, key: EpisodeKey, step: int, trials: int) -> npt.NDArray[np.int64]:
        """Draw the first action of every trial again, as its plan drew it."""
        if self._actions is None:
            self._actions = int(self._store.scores(key).shape[-1])
        plan = Planner(
            self._settings,
            RandomActions(gym.spaces.Discrete(self._actions)),
            (*key.stream_keys, step),
            enumerable=False,
        ).plan(1)
        drawn = np.array([plan.uniforms(trial)[0, 0] for trial in range(trials)])
        return np.asarray((drawn * self._actions).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Regrets:
    """Criticality, regret and stakes of a study's moments at n = 1, in the order of its tuples."""

    keys: list[EpisodeKey]  # [moments]
    steps: npt.NDArray[np.int64]  # [moments]
    criticality: Floats  # [moments]
    regret: Floats  # [moments]
    how: How

    @property
    def stakes(self) -> Floats:
        """s = c + g, [moments]."""
        return self.criticality + self.regret

    @property
    def natural(self) -> npt.NDArray[np.bool_]:
        """Marks natural moments, [moments]."""
        return np.array([key.phase == "natural" for key in self.keys], dtype=bool)


def read_regrets(store: Store) -> Regrets:
    """Return the regret of every moment measured for n = 1; StudyIncomplete if there is none."""
    reader = RegretReader(store)
    if reader.refusal is not None:
        raise StudyIncomplete(reader.refusal)
    step_of = {moment.episode: moment.step for moment in store.moments()}
    found: list[tuple[EpisodeKey, Regret]] = []
    for key, measurement in store.all_measurements("WHERE estimates.n = 1"):
        regret = reader.of(key, step_of[key], measurement)
        if regret is not None:
            found.append((key, regret))
    if not found:
        raise StudyIncomplete(
            f"no moment of the study in {store.folder} shows a regret yet; collect moments, and "
            "where something is random, more trials than twice the number of actions"
        )
    return Regrets(
        keys=[key for key, _ in found],
        steps=np.array([step_of[key] for key, _ in found], dtype=np.int64),
        criticality=np.array([regret.criticality for _, regret in found]),
        regret=np.array([regret.regret for _, regret in found]),
        how=found[0][1].how,
    )


@dataclass(frozen=True)
class RegretSummary:
    """Regret and stakes at the natural moments of a study, for one action."""

    moments: int
    how: How
    mean_regret: float
    mean_stakes: float
    mean_criticality: float
    wrong: float
    """Share of moments at which another action is better than the agent's own."""
    concentration: dict[str, float] | None
    """Share of moments → share of all regret in those of the greatest; None without any."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        how = {
            "exact": "",
            "sampled": " (at least: the best of the actions tried)",
            "averaged": " (averaged over chance)",
        }[self.how]
        text = (
            f"{self.mean_regret:.3g} a decision{how}, another action is better at "
            f"{self.wrong:.0%} of natural moments; stakes {self.mean_stakes:.3g}"
        )
        if self.concentration is not None:
            text += f"; {self.concentration['0.05']:.0%} of it lies in 5 % of moments"
        return text


def summarise_regret(store: Store) -> RegretSummary | None:
    """Sum up regret over natural moments; None where there is none to be had."""
    try:
        found = read_regrets(store)
    except StudyIncomplete:
        return None
    natural = found.natural
    regret = found.regret[natural]
    if not len(regret):
        return None
    total = float(regret.sum())
    return RegretSummary(
        moments=len(regret),
        how=found.how,
        mean_regret=float(regret.mean()),
        mean_stakes=float(found.stakes[natural].mean()),
        mean_criticality=float(found.criticality[natural].mean()),
        wrong=float((regret > 1e-9).mean()),
        concentration=None
        if total <= 0
        else {f"{share:g}": captured(regret, regret, share) for share in SHARES},
    )
