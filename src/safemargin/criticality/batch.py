"""Trials in lock-step: many simulators, with one call of the policy for all of them per step."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.perturbations import UNIFORM, History, Perturbation
from safemargin.criticality.reference import Reference
from safemargin.criticality.rollouts import Point, Runner
from safemargin.environments import Simulator, Snapshot
from safemargin.policies.base import Memory

MAX_PREFIXES = 256
"""At most this many states after mistakes are kept: about 20 MB for an Atari game."""

MIN_PREFIX = 4
"""Re-simulating this many steps costs more than taking a snapshot."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one trial; None where nothing is random."""

    environment: np.random.Generator | None = None
    policy: np.random.Generator | None = None


@dataclass(slots=True, eq=False)
class Trial:
    """A rollout that starts at a point with mistakes and then follows the policy."""

    uniforms: Floats  # [n, width]: one row for each mistake
    streams: Streams = Streams()
    rollout: Rollout = field(default_factory=Rollout)
    returns: tuple[float, ...] | None = None
    """Its return in each signal, cached when first needed."""
    steps: int = 0
    """Steps simulated: fewer than its length where it shares steps with another rollout."""


@dataclass(slots=True, eq=False)
class _Slot:
    simulator: Simulator
    trial: Trial
    memory: Memory
    history: History

    @property
    def errs(self) -> bool:
        """Whether its next step is a mistake."""
        return len(self.trial.rollout.rewards) < len(self.trial.uniforms)


@dataclass(eq=False)
class TrialBatch:
    """Trials from one point, one in each simulator; a finished trial makes room at once.

    Returns depend neither on the batch size nor on the other trials in the batch.
    """

    runner: Runner
    point: Point
    state_index: StateIndex | None = None
    simulators: Sequence[Simulator] = ()
    """Those of the runner to use; by default all of them."""
    perturbation: Perturbation | None = None
    """What the mistakes are; by default those of the runner."""
    reference: Reference | None = None
    """Who acts after them; by default the agent."""

    def __post_init__(self) -> None:
        self._mistakes = self.perturbation or self.runner.mistakes
        self._idle = list(self.simulators or self.runner.simulators)
        self._busy: list[_Slot] = []
        self._prefixes: dict[tuple[int, bytes], tuple[Snapshot, list[tuple[float, ...]]]] = {}

    @property
    def free(self) -> bool:
        """Whether another trial can start."""
        return bool(self._idle)

    def start(self, trial: Trial) -> None:
        """Start a trial from the point in a free simulator."""
        simulator = self._idle.pop(0)
        snapshot, rewards = self._beginning(trial)
        simulator.restore(snapshot)
        trial.rollout.rewards += rewards
        for _ in rewards:
            self.runner.skip_draw(trial.streams.policy)
        if trial.streams.environment is not None:
            simulator.reseed(trial.streams.environment)
        history = History(self.runner.random_actions, self.point.earlier)
        slot = _Slot(simulator, trial, self.point.memory, history)
        self._busy.append(slot)
        # Nobody need look at the mistakes while they are made.
        if slot.memory is None and not self._mistakes.watches:
            self._perturb(slot)
            if trial.rollout.finished:
                self._release([slot])

    def advance(self) -> None:
        """Advance every running trial by one step."""
        asking = [slot for slot in self._busy if not self._joins_earlier(slot)]
        if self.reference is not None:
            erring = [slot for slot in asking if slot.errs]
            self._take_over(self.reference, [slot for slot in asking if not slot.errs])
            asking = erring
        if asking:
            rows, memories = self.runner.scores(
                [slot.simulator.observation for slot in asking], [slot.memory for slot in asking]
            )
            for slot, row, memory in zip(asking, rows, memories, strict=True):
                slot.memory = memory
                if slot.errs:
                    self._err(slot, row)
                else:
                    generator = slot.trial.streams.policy
                    self._step(slot, self.runner.choose(row, generator, slot.simulator.mask))
        self._release([slot for slot in self._busy if slot.trial.rollout.over])

    def _take_over(self, reference: Reference, slots: Sequence[_Slot]) -> None:
        """Have the reference take one step in each of these trials."""
        if not slots:
            return
        actions, steps = reference.actions(self.runner, [slot.simulator for slot in slots])
        for slot, action, spent in zip(slots, actions, steps, strict=True):
            slot.trial.steps += spent
            slot.memory = None  # of an agent that acts no more
            self._step(slot, action)

    def run(self, trials: Sequence[Trial]) -> None:
        """Start these trials as simulators become free, and advance until all are complete."""
        waiting = deque(trials)
        while not all(trial.rollout.complete for trial in trials):
            while waiting and self.free:
                self.start(waiting.popleft())
            self.advance()

    def abandon(self, trials: Iterable[Trial]) -> None:
        """Stop trials that are no longer needed, unless another trial follows them."""
        unwanted = {
            id(trial) for trial in trials if not trial.rollout.over and trial.rollout.followers == 0
        }
        slots = [slot for slot in self._busy if id(slot.trial) in unwanted]
        for slot in slots:
            slot.trial.rollout.abandoned = True
        self._release(slots)

    def _release(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            self._busy.remove(slot)
            self._idle.append(slot.simulator)

    def _joins_earlier(self, slot: _Slot) -> bool:
        """Whether the trial has reached a state of an earlier rollout, which it then follows."""
        rollout = slot.trial.rollout
        position, n = len(rollout.rewards), len(slot.trial.uniforms)
        if self.state_index is None or position < n:
            return False
        memory = slot.memory if self.reference is None else None
        other = self.state_index.match_or_add(position, slot.simulator, memory, rollout, n)
        if other is not None:
            rollout.follow(other)
        return other is not None

    def _perturb(self, slot: _Slot) -> None:
        """Make the mistakes; save the states that trials of a smaller n start from."""
        trial, simulator = slot.trial, slot.simulator
        rollout, n = trial.rollout, len(trial.uniforms)
        stops = [n]
        if simulator.portable and trial.streams.environment is None:
            shorter = [length for length in self.runner.settings.n_values if length < n]
            stops = [length for length in shorter if length >= MIN_PREFIX] + stops
        for stop in stops[bisect_right(stops, len(rollout.rewards)) :]:
            while not rollout.finished and len(rollout.rewards) < stop:
                left = stop - len(rollout.rewards)
                self._err(slot, watched=left <= simulator.looks_back)
            if stop < n and not rollout.finished and len(self._prefixes) < MAX_PREFIXES:
                self._prefixes[stop, trial.uniforms[:stop].tobytes()] = (
                    simulator.save(),
                    list(rollout.rewards),
                )

    def _beginning(self, trial: Trial) -> tuple[Snapshot, list[tuple[float, ...]]]:
        """Return the state that a larger n left after the same mistakes, or the point."""
        if trial.streams.environment is None:
            found = self._prefixes.pop((len(trial.uniforms), trial.uniforms.tobytes()), None)
            if found is not None:
                return found
        return self.point.snapshot, []

    def _err(
        self, slot: _Slot, row: npt.NDArray[np.float32] | None = None, *, watched: bool = True
    ) -> None:
        trial, history = slot.trial, slot.history
        history.observation, history.mask = slot.simulator.observation, slot.simulator.mask
        uniforms = trial.uniforms[len(trial.rollout.rewards)]
        action = self.runner.err(self._mistakes, uniforms, history, row, trial.streams.policy)
        self._step(slot, action, watched=watched)

    def _step(self, slot: _Slot, action: object, *, watched: bool = True) -> None:
        step = slot.simulator.step(action, watched=watched)
        slot.trial.steps += 1
        rollout = slot.trial.rollout
        rollout.rewards.append(self.runner.gained(step, slot.simulator))
        ended = step.terminated or step.truncated
        rollout.finished = ended or len(rollout.rewards) >= self.runner.settings.horizon
        if rollout.finished and slot.trial.streams.environment is None:
            rollout.drew = self.point.drew_in(slot.simulator)


def action_returns(
    runner: Runner,
    point: Point,
    state_index: StateIndex | None = None,
    *,
    environment: Callable[[], np.random.Generator] | None = None,
    policy: Callable[[], np.random.Generator] | None = None,
) -> Floats:
    """Return the discounted return of each action at a point, with the policy acting after it.

    The result is [actions]. `environment` and `policy` make the random streams of each action's
    trial; return equal streams to compare the actions in the same future. Simulators stay where
    trials ended.
    """
    trials = first_actions(runner, point, state_index, environment=environment, policy=policy)
    return np.array([runner.returns(trial.rollout.all_rewards())[0] for trial in trials])


def first_actions(
    runner: Runner,
    point: Point,
    state_index: StateIndex | None = None,
    *,
    environment: Callable[[], np.random.Generator] | None = None,
    policy: Callable[[], np.random.Generator] | None = None,
) -> list[Trial]:
    """Play a trial of each action at a point, as `action_returns` does.

    Where a mask forbids an action, a legal one is played in its place.
    """
    space = runner.simulator.env.action_space
    assert isinstance(space, gym.spaces.Discrete)
    actions, mask = int(space.n), point.snapshot.mask
    wanted = (np.arange(actions) + 0.5) / actions
    if mask is not None:  # a random action is then one of the legal ones
        wanted = np.where(mask, (np.cumsum(mask) - 0.5) / np.count_nonzero(mask), wanted)
    trials = []
    for uniform in wanted:
        streams = Streams(*(None if make is None else make() for make in (environment, policy)))
        # Random actions are made from uniform numbers; this number gives the wanted action.
        trials.append(Trial(np.array([[uniform]]), streams))
    TrialBatch(runner, point, state_index, perturbation=UNIFORM).run(trials)
    return trials
