"""Cheap labels for the bundled Atari agents: what single actions, and a few random ones, lead to.

    python reproduction/labels.py beamrider-a3c pong-a3c --minutes 9 --workers 16 --output labels

Labels come from other games than the study's own. At moments some steps apart, every action is
tried once (regret, stakes and n = 1 follow), and at a share of them three nested trials of each
larger n are run as well. The games are played once, with a snapshot at every moment, and trials
that come back to the game as it was played end there. In every second game each life is disturbed
once, early, by a few random actions: plays that the agent alone would never come to. They are
for learning alone, as what follows is no natural moment.

Every game's plays are kept as hashes, so that moments within a horizon of one another on the same
play can be told. `--own` plays the study's own games first, as far as their moments reach. Then
`python reproduction/labelled.py AGENT --labels FOLDER` joins both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import time
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.cli.paper_studies import PAPER_STUDIES
from safemargin.core.records import PHASES, EpisodeKey, Floats
from safemargin.core.seeding import environment_seed, plain_generator
from safemargin.criticality.batch import Trial, TrialBatch
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.estimation import Randomness
from safemargin.criticality.rollouts import Point
from safemargin.engines.base import Job, Worker
from safemargin.environments import EnvironmentSpec
from safemargin.policies import load_policy
from safemargin.policies.base import batch_of
from safemargin.policies.features import LAGS, WINDOW, with_value
from safemargin.study.kinship import window_hashes

LABEL_SEED = 2**31
"""Added to the studies' seed."""
TRIALS = 3
DISTURBED = (8, 33)
"""Disturbances are this many random actions (the end excluded) ..."""
BEFORE = 400
"""... begin before this step of a life, counted from its opening's end ..."""
AFTER = 24
"""... and are left behind for this many steps before the first moment."""


@dataclass(eq=False)
class Life:
    """One life of a game as it was played, and its moments."""

    number: int
    rewards: list[float] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)  # after every second step
    rows: list[npt.NDArray[np.float32]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # of the observations
    moments: dict[int, Point] = field(default_factory=dict)  # step → what to start from
    cut: bool = False


class Labeller:
    """An agent in its game, and what mistakes cost it."""

    def __init__(self, agent: str, stride: int, full: float, policy: str | None = None) -> None:
        paper = PAPER_STUDIES[agent]
        self.settings = replace(
            paper.settings, trial_plan="fixed", trials=TRIALS, max_enumerated=18
        )
        self.stride, self.full = stride, full
        self.runner = Worker(
            Job(
                environment=EnvironmentSpec.parse(paper.environment),
                policy=load_policy(policy or paper.policy),
                settings=self.settings,
                proxies=(),
                way="snapshot",
                randomness=Randomness(environment=False, policy=False),
            )
        ).runner
        self.actions = int(self.runner.simulator.env.action_space.n)  # type: ignore[attr-defined]

    def own(self, phase: int, index: int, wanted: list[tuple[int, int]]) -> dict[str, Any]:
        """Play a game of the study as far as its moments (life, step) reach."""
        last = max(wanted)
        until = (last[0], last[1] + self.settings.horizon)
        lives = self._play(EpisodeKey(PHASES[phase], index), self.settings.seed, until=until)
        scores = [lives[life].rows[step] for life, step in wanted]
        columns = {
            "life": np.array([life for life, _ in wanted]),
            "step": np.array([step for _, step in wanted]),
            "scores": np.stack(scores),
        }
        hashes = [self._hashes(life) for life in lives]
        return {"game": index, "phase": phase, "labels": columns, "hashes": hashes}

    def game(self, index: int, until: float) -> dict[str, Any]:
        """Play a game of the labels, and try what can be done at its moments."""
        rng = plain_generator(1_000_003 * index + 17)
        disturb = index % 2 == 1
        key = EpisodeKey("natural", index)
        lives = self._play(key, self.settings.seed + LABEL_SEED, rng=rng, disturb=disturb)
        found: dict[str, list[Any]] = {}
        for life in lives:
            for step, point in sorted(life.moments.items()):
                left = self.settings.horizon if life.cut else self.settings.excluded_steps
                if step >= len(life.rewards) - left:
                    continue
                if time.time() > until:
                    break
                label = self._label(life, step, point, rng, full=rng.random() < self.full)
                for name, value in {"life": life.number, "step": step, **label}.items():
                    found.setdefault(name, []).append(value)
        return {
            "game": index,
            "disturbed": disturb,
            "labels": {name: np.stack(values) for name, values in found.items()},
            "hashes": [self._hashes(life) for life in lives],
        }

    def _play(
        self,
        key: EpisodeKey,
        seed: int,
        *,
        rng: np.random.Generator | None = None,
        disturb: bool = False,
        until: tuple[int, int] | None = None,
    ) -> list[Life]:
        """Play a game; with a generator, save a point in every stretch of steps."""
        runner, settings = self.runner, self.settings
        simulator = runner.simulator
        opening = runner.opening(*key.game_keys) if rng is None else self._opening(rng)
        observation = simulator.reset(environment_seed(seed, *key.game_keys))
        lives: list[Life] = []
        while True:
            life = Life(len(lives))
            lives.append(life)
            start = len(opening) if life.number == 0 else 0
            burst = range(0)
            if disturb and rng is not None:
                first = start + int(rng.integers(BEFORE))
                burst = range(first, first + int(rng.integers(*DISTURBED)))
            free = (burst.stop + AFTER) if burst else start
            recent: deque[Any] = deque(maxlen=max(LAGS) + 1)
            chosen = self._next_moment(free, rng)
            ended = False
            while not ended and len(life.rewards) < settings.max_episode_steps:
                step = len(life.rewards)
                if until is not None and (life.number, step) >= until:
                    return [one for one in lives if one.rewards]
                rows, _ = runner.scores([observation], [None])
                life.rows.append(rows[0])
                life.marks.append(zlib.crc32(np.ascontiguousarray(observation)))
                recent.append(observation)
                if step < start:
                    action = runner.random_actions(opening[step], None)
                elif step in burst:
                    assert rng is not None
                    action = runner.random_actions(rng.random(runner.random_actions.width), None)
                else:
                    action = runner.choose(rows[0], None, simulator.mask)
                    if step == chosen:
                        life.moments[step] = self._point(recent)
                        chosen = self._next_moment(step - step % self.stride + self.stride, rng)
                taken = simulator.step(action)
                life.rewards.append(taken.reward)
                if rng is not None and len(life.rewards) % 2 == 0:
                    life.states.append(simulator.digest() or b"")
                observation = taken.observation
                ended = taken.terminated or taken.truncated
            life.cut = not ended
            if not (ended and simulator.game_goes_on):
                return lives
            observation = simulator.next_life()

    def _opening(self, rng: np.random.Generator) -> Floats:
        length = int(rng.integers(self.settings.opening + 1))
        return rng.random((length, self.runner.random_actions.width))

    def _next_moment(self, at_least: int, rng: np.random.Generator | None) -> int:
        """Draw an even step from the stretch that begins there."""
        if rng is None:
            return -1
        step = at_least + int(rng.integers(self.stride))
        return step + step % 2

    def _point(self, recent: deque[Any]) -> Point:
        at = [max(len(recent) - 1 - lag, 0) for lag in LAGS]
        features = self.runner.policy.features(batch_of([recent[each] for each in at]), None)
        simulator = self.runner.simulator
        return Point(simulator.save(), None, np.asarray(with_value(features)))

    def _label(
        self, life: Life, step: int, point: Point, rng: np.random.Generator, *, full: bool
    ) -> dict[str, Any]:
        """Try every action once, and for full labels a few nested sequences of each larger n."""
        runner, horizon = self.runner, self.settings.horizon
        own = life.rewards[step : step + horizon]
        index = StateIndex(horizon)
        rollout = Rollout([(each,) for each in own], finished=True)
        states = life.states[step // 2 : step // 2 + len(own) // 2]
        index.add_finished([each for state in states for each in (b"", state)], rollout)
        single = [
            Trial(np.array([[(action + 0.5) / self.actions]])) for action in range(self.actions)
        ]
        nested = rng.random((max(self.settings.n_values), TRIALS, 1))
        larger = [n for n in self.settings.n_values if n > 1]
        several = [
            Trial(nested[:n, trial]) for n in reversed(larger) for trial in range(TRIALS)
        ] if full else []  # fmt: skip
        TrialBatch(runner, point, index).run([*several, *single])
        of = [runner.returns(trial.rollout.all_rewards())[0] for trial in several]
        returns = np.full((len(larger), TRIALS), np.nan)
        if full:
            returns[:] = np.array(of).reshape(len(larger), TRIALS)[::-1]
        rows = np.stack(life.rows[max(step - WINDOW, 0) : step + 1])
        rows = np.concatenate([np.repeat(rows[:1], WINDOW + 1 - len(rows), axis=0), rows])
        assert point.hidden is not None
        return {
            "own": runner.returns([(each,) for each in own])[0],
            "single": np.array(
                [runner.returns(trial.rollout.all_rewards())[0] for trial in single]
            ),
            "several": returns,
            "recent": rows,
            "hidden": point.hidden.astype(np.float16),
            "steps": sum(trial.steps for trial in [*several, *single]),
        }

    def _hashes(self, life: Life) -> npt.NDArray[np.uint32]:
        """Return a hash of the last screens at each step, [steps]; 0 where too little varies."""
        whole = window_hashes(np.array(life.marks, np.uint32).view(np.float32)[:, None])
        return (whole ^ (whole >> np.uint64(32))).astype(np.uint32)


def work(
    options: dict[str, Any], own: list[tuple[Any, ...]], games: range, until: float, found: Any
) -> None:
    """Play games in a process of its own: those of the study first, then labels until the end."""
    labeller = Labeller(**options)
    for task in own:
        found.put(("own", labeller.own(*task)))
    for game in games:
        if time.time() > until:
            break
        found.put(("labels", labeller.game(game, until)))
    found.put(("done", None))


def own_games(path: Path) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return the games of the study's moments: phase, number, and the moments (life, step)."""
    with np.load(path) as stored:
        rows = stored["keys"].tolist()
    games: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for phase, index, life, step in rows:
        games.setdefault((phase, index), []).append((life, step))
    return [(*game, moments) for game, moments in games.items()]


def keep(path: Path, games: list[dict[str, Any]]) -> int:
    """Write what was found of these games; return the number of moments."""
    columns: dict[str, list[Any]] = {}
    for one in games:
        labels = one.pop("labels", None) or one.get("kept", {})
        one["kept"] = labels
        if not labels:
            continue
        count = len(labels["step"])
        for name, values in labels.items():
            columns.setdefault(name, []).append(values)
        for name in ("game", "phase", "disturbed"):
            if name in one:
                columns.setdefault(name, []).append(np.full(count, one[name]))
    hashes = [
        (one["game"], one.get("phase", -1), life, each)
        for one in games
        for life, each in enumerate(one["hashes"])
    ]
    content = {name: np.concatenate(values) for name, values in columns.items()}
    content["play"] = np.array([[*of, len(each)] for *of, each in hashes], np.int64)
    content["hashes"] = np.concatenate([each for *_, each in hashes])
    with open(path.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **content)
    os.replace(path.with_suffix(".part"), path)
    return len(content.get("step", ()))


def main() -> None:
    """Read the command line, and label until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", choices=sorted(PAPER_STUDIES))
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=20, help="default 20")
    parser.add_argument("--until", type=float, help="end at this time instead, in Unix seconds")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", type=int, default=0, metavar="GAME", help="default 0")
    parser.add_argument("--stride", type=int, default=100, help="steps a moment; default 100")
    parser.add_argument("--full", type=float, default=1.0, help="share of full labels; default 1")
    parser.add_argument("--policy", help="of another agent in the same game, instead of its own")
    parser.add_argument(
        "--own", type=Path, metavar="FILE", help="lessons.npz: play the study's games, too"
    )
    options = parser.parse_args()
    until = options.until or time.time() + 60 * options.minutes
    own = [] if options.own is None else own_games(options.own)
    options.output.mkdir(parents=True, exist_ok=True)
    found: Any = multiprocessing.get_context("spawn").Queue()
    workers = []
    for number in range(options.workers):
        games = range(options.first + number, options.first + 10**6, options.workers)
        of = {"agent": options.agent, "stride": options.stride, "full": options.full}
        of["policy"] = options.policy
        task = (of, own[number :: options.workers], games, until, found)
        workers.append(multiprocessing.get_context("spawn").Process(target=work, args=task))
        workers[-1].start()
    parts: dict[str, list[dict[str, Any]]] = {"own": [], "labels": []}
    files = {
        "own": options.output / f"{options.agent}-own.npz",
        "labels": options.output / f"{options.agent}-{options.first}.npz",
    }
    left, kept, began = options.workers, time.time(), time.time()
    while left and any(one.is_alive() for one in workers) and time.time() < until + 20:
        try:
            kind, one = found.get(timeout=1)
        except queue.Empty:
            continue
        left -= kind == "done"
        if kind == "done":
            continue
        parts[kind].append(one)
        if time.time() - kept > 120:
            kept = time.time()
            report(parts, files, began)
    report(parts, files, began)
    for one in workers:
        one.join(1)
        one.kill()


def report(parts: dict[str, list[dict[str, Any]]], files: dict[str, Path], began: float) -> None:
    """Keep what was found, and print how much it is."""
    for kind, games in parts.items():
        if games:
            count = keep(files[kind], games)
            print(
                f"{time.time() - began:5.0f} s  {files[kind].name}: {len(games)} games, "
                f"{count} moments",
                flush=True,
            )


if __name__ == "__main__":
    main()
