"""A mask that blinds an agent wherever that costs nothing, after Cheng et al. 2023 (StateMask).

The idea is theirs: train a second policy that decides at each step whether the agent acts or a
random action takes its place, so that as many steps as possible are blinded without losing return;
the steps that it leaves to the agent are the important ones. Here the mask is a logistic function
of the agent's scores and their short history, trained by evolution strategies (antithetic, with
common starts) on

    J = share of blinded steps − PRICE · max(0, own return − blinded return) / scale,

with the mean absolute own return as the scale. The importance of a step is the chance that the mask
leaves it to the agent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Floats
from safemargin.core.seeding import Purpose, stream
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins.learned.probe import EXPLANATIONS
from safemargin.monitor.attack import Player, mean_and_band
from safemargin.monitor.attackers import RandomAction
from safemargin.monitor.timing import Ranking, Rule
from safemargin.policies.base import ScoreKind
from safemargin.policies.features import History, inputs_along
from safemargin.study.study import Study

PRICE = 5.0
"""How many shares of blinded steps a whole return is worth."""

PAIRS, SPREAD, STEP = 6, 0.5, 1.0
"""Perturbations of the mask in each round, taken with both signs; their size; the step taken."""

EXAMINED = 20
"""Games that the trained mask is examined on, after all those it was trained on."""


@dataclass(frozen=True, slots=True)
class LearnedMask:
    """What came of training a mask."""

    blinded: float
    """The share of steps that it blinds, in games that it was not trained on."""
    own: float
    """The mean return of these games without it."""
    loss: float
    """How much lower it is with the mask."""
    loss_half_width: float | None
    by_lot: float
    """How much lower it is where the same share of steps is blinded by lot."""
    games: int
    proxy: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        half = "" if self.loss_half_width is None else f" ± {self.loss_half_width:.2g}"
        return (
            f"the mask blinds {self.blinded:.0%} of steps and loses {self.loss:.3g}{half} of a "
            f"return of {self.own:.3g}; by lot the same share loses {self.by_lot:.3g} "
            f"({self.games} games); the importance of each step is recorded as {self.proxy!r}"
        )


class _ByMask(Ranking):
    """The chance that a mask blinds a step."""

    name = "mask"

    def __init__(self, kind: ScoreKind, center: Floats, scale: Floats, weights: Floats) -> None:
        self._kind, self._center, self._scale, self.weights = kind, center, scale, weights
        self.begin()

    def begin(self) -> None:
        self._history = History(self._kind, 1)

    def chance(self, inputs: Floats) -> Floats:
        """Return the chance that each step with these inputs is blinded, [steps]."""
        standard = np.clip((inputs - self._center) / self._scale, -5, 5)
        logits = standard @ self.weights[:-1] + self.weights[-1]
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))

    def now(
        self, runner: Runner, row: npt.NDArray[np.float32], hidden: npt.NDArray[Any], step: int
    ) -> float:
        inputs = self._history.add(row[None], np.empty((1, 0), np.float32))
        return float(self.chance(inputs.astype(np.float64))[0])


class _Blind(Rule):
    """Takes values as the chances themselves."""

    def weights(self, values: Floats) -> Floats:
        return values


BLIND = _Blind(0.0, 0.0)


def learn_mask(
    study: Study, *, rounds: int = 30, games: int = 2, progress: Progress | None = None
) -> LearnedMask:
    """Train a mask, and record the importance of every step along all episodes.

    Each round plays `games` games for each of twelve masks.
    """
    if rounds < 1 or games < 1:
        raise InvalidInput(f"a mask takes at least 1 round and 1 game, got {rounds} and {games}")
    store, progress = study.store, progress or Silence()
    keys, kind = list(store.episode_outlines()), store.meta("policy")["kind"]
    if not keys:
        raise StudyIncomplete(f"the study in {study.path} has no episode yet; collect it first")
    every = {key: _inputs(kind, store.scores(key)) for key in keys}
    whole = np.concatenate(list(every.values()))
    deviation = whole.std(axis=0)
    mask = _ByMask(
        kind,
        whole.mean(axis=0),
        np.where(deviation > 1e-9, deviation, 1.0),
        np.zeros(whole.shape[1] + 1),
    )
    progress.stage("mask", total=rounds * 2 * PAIRS * games + 3 * EXAMINED, done=0)
    job = study.job()
    simulator = make_simulator(job.environment.make(), way=job.way)
    player = Player(Runner(simulator, job.policy, job.settings), RandomAction(), "mask", None)
    try:
        first = rounds * games
        own = [player.play(None, None, first + game, progress)[0] for game in range(EXAMINED)]
        scale = max(float(np.abs(own).mean()), 1e-9)
        for number in range(rounds):
            mask.weights = _improved(player, mask, number, games, scale, progress)
        found = np.array(
            [
                player.play_once(mask, _Blind(0, 0), first + game, progress)
                for game in range(EXAMINED)
            ]
        )
        blinded = float(found[:, 2].sum() / found[:, 1].sum())
        lot = [
            player.play(Ranking(), Rule(0.0, blinded), first + game, progress)[0]
            for game in range(EXAMINED)
        ]
    finally:
        simulator.close()
    proxy = EXPLANATIONS["mask"]
    with store.writing():
        store.drop_trace(proxy)
        for key, inputs in every.items():
            store.add_trace(key, proxy, 1 - mask.chance(inputs))
    loss, half = mean_and_band(np.array(own) - found[:, 0])
    assert loss is not None
    by_lot = float(np.mean(own) - np.mean(lot))
    return LearnedMask(blinded, float(np.mean(own)), loss, half, by_lot, EXAMINED, proxy)


def _improved(
    player: Player, mask: _ByMask, number: int, games: int, scale: float, progress: Progress
) -> Floats:
    """Return the weights after a round: a step along the estimated gradient of J."""
    before = mask.weights
    noise = stream(0, Purpose.MASK, number).normal(size=(PAIRS, len(before)))
    values = np.zeros((PAIRS, 2))
    for pair in range(PAIRS):
        for side, sign in enumerate((1, -1)):
            mask.weights = before + sign * SPREAD * noise[pair]
            for game in range(number * games, (number + 1) * games):
                own = player.play(None, None, game, Silence())[0]
                total, steps, struck = player.play_once(mask, BLIND, game, progress)
                lost = max(0.0, own - total) / scale
                values[pair, side] += (struck / max(steps, 1) - PRICE * lost) / games
    gain = values[:, 0] - values[:, 1]
    gain /= max(float(np.abs(gain).mean()), 1e-9)
    return np.asarray(before + STEP * (gain @ noise) / (2 * PAIRS))


def _inputs(kind: ScoreKind, scores: npt.NDArray[np.float32]) -> Floats:
    return inputs_along(kind, scores, np.empty((len(scores), 0), np.float32)).astype(np.float64)
