"""Trials in lock-step: many simulators, and one call of the policy for all of them at each step."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np

from safemargin.core.records import Floats
from safemargin.criticality.coalescing import Meetings, Rollout
from safemargin.criticality.rollouts import Point, Runner
from safemargin.environments import Simulator, Snapshot
from safemargin.policies.base import Memory

MOST_PREFIXES = 256
"""So many states after random actions are kept: about 20 MB in an Atari game."""

SHORTEST_PREFIX = 4
"""So many steps cost more than saving where they led."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What one trial draws from; None where nothing is random."""

    environment: np.random.Generator | None = None
    policy: np.random.Generator | None = None


@dataclass(slots=True, eq=False)
class Trial:
    """A rollout that leaves a point with random actions and then follows the policy."""

    uniforms: Floats  # [n, width]: one row for each random action
    streams: Streams = Streams()
    rollout: Rollout = field(default_factory=Rollout)
    discounted: float | None = None
    """Its return, once somebody asked for it."""
    steps: int = 0
    """Simulated; fewer than its length where it follows another rollout or began like one."""


@dataclass(slots=True, eq=False)
class _Lane:
    simulator: Simulator
    trial: Trial
    memory: Memory


class Lanes:
    """One lane for each simulator of the runner; a trial that is over makes room at once.

    The returns do not depend on the number of lanes or on what runs beside a trial.
    """

    def __init__(
        self,
        runner: Runner,
        point: Point,
        meetings: Meetings | None = None,
        simulators: Sequence[Simulator] = (),
    ) -> None:
        """`simulators`: those of the runner to use; all of them where none is named."""
        self._runner = runner
        self._point = point
        self._meetings = meetings
        self._horizon = runner.settings.horizon
        self._idle = list(simulators or runner.simulators)
        self._busy: list[_Lane] = []
        self._prefixes: dict[bytes, tuple[Snapshot, list[float]]] = {}

    @property
    def free(self) -> bool:
        """Whether another trial can start."""
        return bool(self._idle)

    def start(self, trial: Trial) -> None:
        """Let a trial leave the point."""
        simulator = self._idle.pop(0)
        snapshot, rewards = self._beginning(trial)
        simulator.restore(snapshot)
        trial.rollout.rewards += rewards
        for _ in rewards:
            self._runner.pass_over(trial.streams.policy)
        if trial.streams.environment is not None:
            simulator.reseed(trial.streams.environment)
        lane = _Lane(simulator, trial, self._point.memory)
        self._busy.append(lane)
        if lane.memory is None:  # the policy need not see the random actions
            self._perturb(lane)
            if trial.rollout.finished:
                self._release([lane])

    def advance(self) -> None:
        """Take one step in every lane."""
        asking = [lane for lane in self._busy if not self._meets(lane)]
        if asking:
            rows, memories = self._runner.scores(
                [lane.simulator.observation for lane in asking], [lane.memory for lane in asking]
            )
            for lane, row, memory in zip(asking, rows, memories, strict=True):
                lane.memory = memory
                if len(lane.trial.rollout.rewards) < len(lane.trial.uniforms):
                    self._step_at_random(lane)
                else:
                    generator = lane.trial.streams.policy
                    self._step(lane, self._runner.choose(row, generator, lane.simulator.mask))
        self._release([lane for lane in self._busy if lane.trial.rollout.over])

    def finish(self, trials: Sequence[Trial]) -> None:
        """Go on until these trials, all started, are complete."""
        while not all(trial.rollout.complete for trial in trials):
            self.advance()

    def abandon(self, trials: Iterable[Trial]) -> None:
        """Stop trials that nobody wants any longer and no other one follows."""
        unwanted = {
            id(trial) for trial in trials if not trial.rollout.over and trial.rollout.followers == 0
        }
        lanes = [lane for lane in self._busy if id(lane.trial) in unwanted]
        for lane in lanes:
            lane.trial.rollout.abandoned = True
        self._release(lanes)

    def _release(self, lanes: Iterable[_Lane]) -> None:
        for lane in lanes:
            self._busy.remove(lane)
            self._idle.append(lane.simulator)

    def _meets(self, lane: _Lane) -> bool:
        """Whether a trial meets another rollout here, which it then follows."""
        rollout = lane.trial.rollout
        position, n = len(rollout.rewards), len(lane.trial.uniforms)
        if self._meetings is None or position < n:
            return False
        other = self._meetings.arrive(position, lane.simulator, lane.memory, rollout, n)
        if other is not None:
            rollout.follow(other)
        return other is not None

    def _perturb(self, lane: _Lane) -> None:
        """Take the random actions; keep the states from which trials of a smaller n go on."""
        trial, simulator = lane.trial, lane.simulator
        rollout, n = trial.rollout, len(trial.uniforms)
        stops = [n]
        if simulator.portable and trial.streams.environment is None:
            shorter = [length for length in self._runner.settings.n_values if length < n]
            stops = [length for length in shorter if length >= SHORTEST_PREFIX] + stops
        for stop in stops[bisect_right(stops, len(rollout.rewards)) :]:
            while not rollout.finished and len(rollout.rewards) < stop:
                left = stop - len(rollout.rewards)
                self._step_at_random(lane, watched=left <= simulator.looks_back)
            if stop < n and not rollout.finished and len(self._prefixes) < MOST_PREFIXES:
                self._prefixes[trial.uniforms[:stop].tobytes()] = (
                    simulator.save(),
                    list(rollout.rewards),
                )

    def _beginning(self, trial: Trial) -> tuple[Snapshot, list[float]]:
        """Where the random actions led in a trial of a larger n; else the point itself."""
        if trial.streams.environment is None:
            found = self._prefixes.pop(trial.uniforms.tobytes(), None)
            if found is not None:
                return found
        return self._point.snapshot, []

    def _step_at_random(self, lane: _Lane, *, watched: bool = True) -> None:
        position = len(lane.trial.rollout.rewards)
        uniforms = lane.trial.uniforms[position]
        self._runner.pass_over(lane.trial.streams.policy)
        action = self._runner.random_actions(uniforms, lane.simulator.mask)
        self._step(lane, action, watched=watched)

    def _step(self, lane: _Lane, action: object, *, watched: bool = True) -> None:
        step = lane.simulator.step(action, watched=watched)
        lane.trial.steps += 1
        rollout = lane.trial.rollout
        rollout.rewards.append(step.reward)
        ended = step.terminated or step.truncated
        rollout.finished = ended or len(rollout.rewards) >= self._horizon


def action_returns(
    runner: Runner,
    point: Point,
    meetings: Meetings | None = None,
    *,
    environment: Callable[[], np.random.Generator] | None = None,
) -> Floats:
    """The discounted return of each action at a point, if the policy goes on after it, [actions].

    `environment` makes the stream that each action's trial draws from; pass the same one each time
    to compare the actions in the same future. Simulators are left wherever the trials ended.
    """
    space = runner.simulator.env.action_space
    assert isinstance(space, gym.spaces.Discrete)
    actions = int(space.n)
    trials = []
    for action in range(actions):
        streams = Streams(environment=None if environment is None else environment())
        # A random action is made from a uniform number: this one makes the wanted action.
        trials.append(Trial(np.array([[(action + 0.5) / actions]]), streams))
    lanes = Lanes(runner, point, meetings)
    waiting = deque(trials)
    while waiting or not all(trial.rollout.complete for trial in trials):
        while waiting and lanes.free:
            lanes.start(waiting.popleft())
        lanes.advance()
    return np.array([runner.discounted(trial.rollout.all_rewards()) for trial in trials])
