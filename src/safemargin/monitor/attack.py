"""Attack timing: what the same number of attacked steps costs, by what chooses the steps.

Games are played live, from starts that the study has not seen and that all rankings share. The
budget of a game is a share of the steps that it takes without an attack: a number of attacks, the
same for all rankings. A step is attacked if its value lies among the highest of the study's natural
episodes, as large a share of them as is left of the budget for what is left of the game; of equal
values, some are chosen by lot (Lin et al. 2017 attack where the preference of the policy exceeds a
threshold; so do we, with one that follows the budget).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.files import written_whole
from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.criticality.rollouts import Runner
from safemargin.criticality.stopping import student_quantile
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.monitor.attackers import Attack, make_attack
from safemargin.monitor.timing import (
    ByLearned,
    Purse,
    Ranking,
    Rule,
    Spending,
    make_rankings,
)
from safemargin.policies.base import Memory, batch_of
from safemargin.policies.features import with_value
from safemargin.study.study import Study

CRITICALITY = "true criticality"
FRESH = 2
"""Stands for the phase in the keys of streams; those of a study are 0 and 1."""

BAND = 0.95


@dataclass(frozen=True, slots=True)
class AttackRow:
    """What one ranking does with one budget."""

    ranking: str
    budget: float
    attacks: float | None
    """The mean number of attacked steps of a game; None for what cannot be known live."""
    score: float | None
    """The mean return of attacked games: their sum of rewards."""
    loss: float | None
    """How much lower that is than without an attack, paired by start."""
    half_width: float | None
    measured: float | None
    """The mean loss measured at as large a share of the study's natural moments."""
    measured_half_width: float | None


@dataclass(frozen=True, slots=True)
class Attacked:
    """The cost of attacks, for every ranking and budget."""

    attack: str
    words: str
    games: int
    score: float
    """The mean return without an attack."""
    steps: float
    """The mean number of steps of a game without an attack."""
    n: int
    """The number of mistakes behind `measured`."""
    mistakes: str
    """Which they are: 'random actions', or 'random action' for a single one."""
    rows: tuple[AttackRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def measure_attack(
    study: Study,
    *,
    budgets: Sequence[float] = (0.05,),
    attack: str = "random",
    by: Sequence[str] | None = None,
    games: int = 20,
    confidence: float = 0.95,
    tolerance: float = 0.5,
    kept: Path | None = None,
    progress: Progress | None = None,
) -> Attacked:
    """Play games under attack, with each budget (a share of steps) and each ranking.

    `by` names rankings: 'lot', proxies, 'margin' (those of `confidence` and `tolerance` on the
    default proxy), 'learned', and 'criticality', which tries every action at every step; by default
    lot, the default proxy, margin, and learned if there is one. Finished games are kept in the file
    `kept` and not played again.
    """
    for budget in budgets:
        if not 0 < budget < 1:
            raise InvalidInput(f"a budget is a share of steps between 0 and 1, got {budget:g}")
    if games < 2:
        raise InvalidInput(f"an attack takes at least 2 games for a band, got {games}")
    how = make_attack(attack)
    job = study.job()
    rankings = make_rankings(
        study, by, confidence, tolerance, {one.name: one for one in job.proxies}
    )
    values = {ranking.name: list(ranking.along(study)) for ranking in rankings}
    if not values[rankings[0].name]:
        raise StudyIncomplete(
            f"the study in {study.path} has no natural episode to learn thresholds from; run "
            "`safemargin collect` on it first"
        )
    simulator = make_simulator(job.environment.make(), way=job.way)
    runner = Runner(simulator, job.policy, job.settings)
    try:
        how.check(runner, deterministic=job.randomness.none)
        player = Player(runner, how, f"{attack} {study.policy['identity']}", kept)
        progress = progress or Silence()
        progress.stage("attacked games", total=games * (len(rankings) * len(budgets) + 1), done=0)
        own = np.array([player.play(None, None, game, progress)[:2] for game in range(games)])
        rows: list[AttackRow] = []
        for budget in budgets:
            for ranking in rankings:
                seen = np.sort(_decisions(values[ranking.name]))
                purses = [Purse(seen, _attacks(budget, steps), int(steps)) for _, steps in own]
                found = np.array(
                    [
                        player.play(ranking, purse, game, progress)
                        for game, purse in enumerate(purses)
                    ]
                )
                loss, half = mean_and_band(own[:, 0] - found[:, 0])
                score, _, attacks = found.mean(axis=0).tolist()
                rule = Rule.for_sorted(seen, budget)
                at_moments = _measured(study, values[ranking.name], rule)
                rows.append(
                    AttackRow(ranking.name, budget, attacks, score, loss, half, *at_moments)
                )
    finally:
        simulator.close()
    for budget in budgets:
        rows.append(_in_hindsight(study, values[rankings[0].name], budget))
    settings, measured = study.settings, study.settings.measured
    return Attacked(
        attack=attack,
        words=how.words,
        games=games,
        score=float(own[:, 0].mean()),
        steps=float(own[:, 1].mean()),
        n=settings.n_values[0],
        mistakes=measured.mistake if settings.n_values[0] == 1 else measured.mistakes,
        rows=tuple(sorted(rows, key=lambda row: row.budget)),
    )


class Player:
    """Plays games, or reads those that were played before."""

    def __init__(self, runner: Runner, attack: Attack, about: str, kept: Path | None) -> None:
        self._runner, self._attack, self._about, self._kept = runner, attack, about, kept
        self._known: dict[str, list[float]] = {}
        if kept is not None and kept.exists():
            try:
                self._known = dict(json.loads(kept.read_text(encoding="utf-8")))
            except (OSError, TypeError, ValueError) as error:
                raise InvalidInput(
                    f"{kept} is no file of attacked games ({error}); name another one with -o"
                ) from None

    def play(
        self, ranking: Ranking | None, rule: Spending | None, game: int, progress: Progress
    ) -> list[float]:
        """Return the sum of rewards of a game, its steps, and how many of them were attacked."""
        name = "none" if ranking is None else f"{ranking.name} {rule}"
        key = hashlib.sha256(
            f"{self._about} {self._runner.settings.to_json()} {name} {game}".encode()
        ).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = self._played(ranking, rule, game)
            if self._kept is not None:
                with written_whole(self._kept) as path:
                    path.write_text(json.dumps(self._known), encoding="utf-8")
            progress.advance(int(self._known[key][1]))
        else:
            progress.advance(0)
        return self._known[key]

    def play_once(
        self, ranking: Ranking, rule: Spending, game: int, progress: Progress
    ) -> list[float]:
        """Return the same, of a game that is not kept."""
        found = self._played(ranking, rule, game)
        progress.advance(int(found[1]))
        return found

    def _played(self, ranking: Ranking | None, rule: Spending | None, game: int) -> list[float]:
        runner, simulator, settings = self._runner, self._runner.simulator, self._runner.settings
        lots = stream(settings.seed, Purpose.ATTACK, game)
        own = None
        if not runner.policy_actions.deterministic:
            own = stream(settings.seed, Purpose.EPISODE_POLICY, FRESH, game, 0)
        opening = runner.opening(FRESH, game)
        width = runner.random_actions.width
        simulator.reset(environment_seed(settings.seed, FRESH, game))
        total, steps, struck = 0.0, 0, 0
        while True:
            if ranking is not None:
                ranking.begin()
            memory, of_life = runner.policy.initial_memory(1), 0
            while not simulator.ended and of_life < settings.max_episode_steps:
                row, hidden, after = self._look(ranking, memory)
                uniforms = lots.random(1 + width)  # as many at each step, attacked or not
                value = 0.0 if ranking is None else ranking.now(runner, row, hidden, of_life)
                if steps < len(opening):
                    action = runner.random_actions(opening[steps], simulator.mask)
                elif rule is not None and uniforms[0] < rule.chance(
                    value, steps - len(opening), struck
                ):
                    action = self._attack.action(runner, row, memory, uniforms[1:])
                    runner.skip_draw(own)
                    struck += 1
                else:
                    action = runner.choose(row, own, simulator.mask)
                memory = after
                total += simulator.step(action).reward
                steps, of_life = steps + 1, of_life + 1
            if not simulator.game_goes_on:
                return [total, float(steps - min(len(opening), steps)), float(struck)]
            simulator.next_life()

    def _look(
        self, ranking: Ranking | None, memory: Memory
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], Memory]:
        """Return the policy's scores, its hidden layer where that is needed, and its memory."""
        observation = self._runner.simulator.observation
        if isinstance(ranking, ByLearned):
            found = self._runner.policy.features(batch_of([observation]), memory)
            return found.scores[0], with_value(found), found.memory
        rows, (after,) = self._runner.scores([observation], [memory])
        return rows[0], np.empty((1, 0)), after


def _attacks(budget: float, steps: float) -> int:
    """Return how many steps of a game are attacked, at least one."""
    return max(round(budget * steps), 1)


def _decisions(traces: Sequence[tuple[Floats, int, int | None]]) -> Floats:
    return np.concatenate([values[opening:] for values, opening, _ in traces])


def _losses(study: Study) -> dict[int, float]:
    """Return the loss measured in natural episodes, by their position, for the smallest n."""
    found = {}
    keys = [key for key in study.store.episode_outlines() if key.phase == "natural"]
    n = study.settings.n_values[0]
    place = {key: number for number, key in enumerate(keys)}
    for key, one in study.store.all_measurements():
        if key in place and one.estimate.n == n:
            found[place[key]] = one.estimate.mean
    return found


def _measured(
    study: Study, traces: Sequence[tuple[Floats, int, int | None]], rule: Rule
) -> tuple[float | None, float | None]:
    """Return the mean loss measured at natural moments that a rule would attack."""
    losses = _losses(study)
    places = [number for number in losses if traces[number][2] is not None]
    at = np.array([traces[number][0][traces[number][2]] for number in places])
    weights = rule.weights(at)
    return mean_and_band(np.array([losses[number] for number in places]), weights)


def _in_hindsight(
    study: Study, traces: Sequence[tuple[Floats, int, int | None]], budget: float
) -> AttackRow:
    """Choose among measured moments by what was measured there, which nobody knows live."""
    losses = np.array(list(_losses(study).values()))
    measured: tuple[float | None, float | None] = (None, None)
    if len(losses):
        measured = mean_and_band(losses, Rule.for_budget(losses, budget).weights(losses))
    return AttackRow(CRITICALITY, budget, None, None, None, None, *measured)


def mean_and_band(
    values: Floats, weights: Floats | None = None
) -> tuple[float | None, float | None]:
    """Return a weighted mean and Student's half-width; None for fewer than one and two values.

    With unequal weights, the half-width is that of as many values as are worth these (Kish).
    """
    weights = np.ones(len(values)) if weights is None else weights
    total = float(weights.sum())
    if total <= 0:
        return None, None
    mean = float((weights * values).sum() / total)
    worth = total**2 / float((weights**2).sum())
    count = int(worth + 1e-9)
    if count < 2:
        return mean, None
    variance = float((weights * (values - mean) ** 2).sum() / total) * worth / (worth - 1)
    return mean, student_quantile(BAND, count) * math.sqrt(variance / worth)
