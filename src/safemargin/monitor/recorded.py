"""Margins along recorded episodes, where there is no simulator: proxy, margin, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Array, Floats
from safemargin.core.settings import Settings
from safemargin.core.text import counted
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins
from safemargin.monitor.drift import FEWEST_EPISODES, Drift, DriftTest
from safemargin.monitor.live_proxy import LiveProxy
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.reservoir import Reservoir
from safemargin.policies import load_policy
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy
from safemargin.policies.batching import ask
from safemargin.policies.features import with_value
from safemargin.policies.observations import for_each
from safemargin.study.export import write_table
from safemargin.study.minari import Dataset, RecordedEpisode

AT_ONCE = 256
"""Observations are scored in batches of this many, where the policy has no memory."""
SURE = 4.0
"""Actions count as another's where they differ by more standard errors than this from ours."""
NEARLY_ALL = 0.99
"""A greedy policy chose at least this share of its recorded actions; rounding may cost a few."""


@dataclass(frozen=True, eq=False)
class RecordedMargins:
    """What the margins of a policy say about episodes that were recorded elsewhere."""

    dataset: str
    episodes: int
    steps: int
    """Decisions of the policy in them; random openings are left out."""
    tolerance: float
    call_at: int
    mean_margin: float
    calls: float
    """The share of decisions whose margin lies below `call_at`."""
    outside: float
    """The share of decisions whose proxy lies above all that were measured."""
    agreement: float | None
    """The share of recorded actions that the policy rates best; None where that cannot be said."""
    drift: Drift
    notes: tuple[str, ...]
    """What users of these numbers must know, one sentence each."""
    columns: dict[str, Array]
    """One row for each decision: episode, step, reward, proxy, margin, call, outside."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the columns as plain values."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        del found["columns"]
        return {**found, "drift": {**vars(self.drift), "why": self.drift.why}}

    def save(self, path: str | Path) -> Path:
        """Write the columns as .csv or .parquet."""
        return write_table(self.columns, Path(path))


def margins_along(
    dataset: str,
    margins: str | Path | Margins,
    policy: Any,
    *,
    tolerance: float,
    call_at: int = 1,
    false_alarms: float = 0.01,
    progress: Progress | None = None,
) -> RecordedMargins:
    """Look up a margin at every decision of a Minari dataset, and watch its proxies for drift.

    `policy` computes the proxies; margins made for another one are refused, and so is a dataset
    that safemargin wrote from another one's episodes. Nothing is simulated.
    """
    recorded = Dataset(dataset)
    known = margins if isinstance(margins, Margins) else Margins.load(margins)
    loaded = load_policy(policy, kind=known.policy.get("kind"))
    judge = Monitor(known, tolerance=tolerance, call_at=call_at, action_space=recorded.action_space)
    if known.policy.get("identity") is not None:
        judge.check(loaded)
    judge.check(recorded.ours.get("policy"), recorded.ours.get("environment"))
    loaded.check(recorded.spaces())
    if len(recorded) == 0:
        raise InvalidInput(f"the Minari dataset {recorded.name!r} holds no episodes")
    return _Along(recorded, known, loaded, tolerance, call_at, false_alarms).result(
        progress or Silence()
    )


class _Along:
    """Plays a dataset past a policy and its margins."""

    def __init__(
        self,
        recorded: Dataset,
        margins: Margins,
        policy: Policy,
        tolerance: float,
        call_at: int,
        false_alarms: float,
    ) -> None:
        self.recorded, self.margins, self.policy = recorded, margins, policy
        self.tolerance, self.call_at, self.false_alarms = tolerance, call_at, false_alarms
        self.proxy = LiveProxy(margins, recorded.action_space)
        names = [name for name in ("action_choice", "epsilon") if name in margins.settings]
        settings = Settings.from_mapping({name: margins.settings[name] for name in names})
        self.choices = _Choices(recorded.action_space, policy, settings)
        natural = margins.natural_proxies
        watching = natural is not None and natural.count >= FEWEST_EPISODES
        self.drift = (
            DriftTest(natural, false_alarms=false_alarms, seed=0)
            if watching and natural is not None
            else None
        )
        self.reservoir = Reservoir(0)  # a seed: the same command gives the same answer

    def result(self, progress: Progress) -> RecordedMargins:
        progress.stage("recorded", total=len(self.recorded), done=0)
        pieces: list[dict[str, Array]] = []
        game = None
        for episode in self.recorded:
            if episode.game != game:
                self._end_game()
            game = episode.game
            pieces.append(self._rows(episode))
            progress.advance(episode.steps)
        self._end_game()
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        if len(columns["step"]) == 0:
            raise InvalidInput(
                f"the Minari dataset {self.recorded.name!r} holds no decision of the policy"
            )
        drift = Drift(False, False, 1.0, 0, self.false_alarms)
        return RecordedMargins(
            dataset=self.recorded.name,
            episodes=len(pieces),
            steps=len(columns["step"]),
            tolerance=self.tolerance,
            call_at=self.call_at,
            mean_margin=float(columns["margin"].mean()),
            calls=float(columns["call"].mean()),
            outside=float(columns["outside"].mean()),
            agreement=self.choices.agreement,
            drift=drift if self.drift is None else self.drift.state,
            notes=tuple(self._notes()),
            columns=columns,
        )

    def _rows(self, episode: RecordedEpisode) -> dict[str, Array]:
        """Return the columns of one episode, and let the test for drift see its decisions."""
        scores, proxies = self._proxies(episode)
        own = slice(episode.opening, None)
        self.choices.compare(scores[own], episode.actions[own])
        values = proxies[own]
        usable = np.isfinite(values)
        found = self.margins.lookup(np.where(usable, values, np.inf), self.tolerance)
        for value in values[usable]:
            self.reservoir.see(float(value))
        steps = np.arange(episode.steps)[own]
        return {
            "episode": np.full(len(steps), episode.number),
            "step": steps,
            "reward": episode.rewards[own],
            self.margins.proxy: values,
            "margin": np.asarray(found.margin),
            "call": np.asarray(found.margin) < self.call_at,
            "outside": np.asarray(found.outside),
        }

    def _proxies(self, episode: RecordedEpisode) -> tuple[Array, Floats]:
        """Return the policy's scores and the proxy at every step of an episode."""
        policy, seen, steps = self.policy, episode.observations, episode.steps
        learned = self.proxy.probe is not None
        memory = policy.initial_memory(1)
        if memory is None and not learned:
            parts = [slice(at, at + AT_ONCE) for at in range(0, steps, AT_ONCE)]
            scores = np.concatenate([ask(policy, _cut(seen, part), None)[0] for part in parts])
            return scores, self.proxy.many(scores)
        rows, values = [], []
        self.proxy.forget([0])
        for step in range(steps):
            one = _cut(seen, slice(step, step + 1))
            if learned:
                found = policy.features(one, memory)
                row, memory = found.scores, found.memory
                values.append(self.proxy.learned(row[0], with_value(found)[0], single=True)[0])
            else:
                row, memory = ask(policy, one, memory)
                values.append(self.proxy.many(row)[0])
            rows.append(row[0])
        return np.stack(rows), np.array(values)

    def _end_game(self) -> None:
        """Hand one decision of the game that ended to the test for drift."""
        for value in self.reservoir.end([0], counted=True):
            if self.drift is not None:
                self.drift.add(value)

    def _notes(self) -> list[str]:
        recorded, notes = self.recorded, []
        measured_in = self.margins.environment.get("name")
        unlike = measured_in is not None and recorded.environment not in (None, measured_in)
        if unlike and "environment" not in recorded.ours:
            notes.append(
                f"the episodes are of {recorded.environment}, the margins were measured in "
                f"{measured_in}: make sure that they are the same"
            )
        if recorded.lossy:
            notes.append(
                "the dataset holds its pictures as JPEG, which is not exactly what the policy saw; "
                "record it with jpeg_encoding=False"
            )
        if (complaint := self.choices.complaint) is not None:
            notes.append(complaint)
        return notes


class _Choices:
    """Compares recorded actions with those that the policy would take."""

    def __init__(self, space: Any, policy: Policy, settings: Settings) -> None:
        self.greedy = PolicyActions(space, policy.kind, Settings())
        self.policy, self.settings = policy, settings
        # Without the masks, what a masked policy would have done is unknown; and no two draws
        # of a Gaussian are equal.
        drawn = settings.action_choice == "sampled" and policy.kind == "gaussian"
        self.known = not (policy.uses_mask or drawn)
        self.discrete = policy.kind in ("q", "logits")
        self.equal = self.count = 0
        self.expected = self.variance = 0.0

    def compare(self, scores: Array, actions: Array) -> None:
        """Add the decisions of one episode."""
        if not self.known:
            return
        chosen = [np.asarray(self.greedy(row)) for row in scores]
        self.count += len(chosen)
        for mine, theirs in zip(chosen, actions, strict=True):
            other = np.reshape(theirs, mine.shape)
            self.equal += bool(
                (mine == other).all()
                if self.discrete
                else np.allclose(mine, other, rtol=1e-4, atol=1e-4)
            )
        likely = self._likely(np.asarray(scores, np.float64))
        self.expected += float(likely.sum())
        self.variance += float((likely * (1 - likely)).sum())

    def _likely(self, scores: Floats) -> Floats:
        """Return the probability that the policy takes its best action, for each row of scores."""
        settings = self.settings
        if settings.action_choice == "sampled":
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(1 / odds.sum(axis=1))
        exploring = settings.epsilon if settings.action_choice == "epsilon-greedy" else 0.0
        by_chance = 1 / scores.shape[-1] if self.discrete else 0.0
        return np.full(len(scores), 1 - exploring * (1 - by_chance))

    @property
    def agreement(self) -> float | None:
        return self.equal / self.count if self.known and self.count else None

    @property
    def complaint(self) -> str | None:
        """Say so if the actions were hardly chosen by this policy."""
        found = self.agreement
        if found is None:
            return None
        expected = self.expected / self.count
        within = max(SURE * self.variance**0.5 / self.count, 1 - NEARLY_ALL)
        if abs(found - expected) <= within:
            return None
        return (
            f"the policy's best action was taken at {found:.1%} of {counted(self.count, 'step')}, "
            f"and it would take it at {expected:.1%}: another policy acted, or people did. Margins "
            "hold for the situations that the policy itself comes into"
        )


def _cut(observations: Any, part: slice) -> Any:
    return for_each(observations, lambda array: array[part])


def brief(found: RecordedMargins) -> Sequence[str]:
    """Say what was found, one sentence a line."""
    lines = [
        f"{counted(found.episodes, 'episode')}, {counted(found.steps, 'decision')}: a mean margin "
        f"of {found.mean_margin:.2f} at a tolerance of {found.tolerance:g}; below {found.call_at} "
        f"at {found.calls:.1%} of decisions",
        f"proxies above all that were measured: {found.outside:.1%} of decisions",
    ]
    if found.agreement is not None:
        lines.append(f"the policy's best action was taken at {found.agreement:.1%}")
    return [*lines, f"drift: {found.drift.why}"]
