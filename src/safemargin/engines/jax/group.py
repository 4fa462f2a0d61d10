"""A group of lanes on a device, and what each of them is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array
from safemargin.engines.jax.draws import PolicyDraws, Schedule
from safemargin.engines.jax.program import ENDED, Lanes, Orders, Outcome, Program, Start


@dataclass(slots=True, eq=False)
class Run:
    """What one lane does, from a start to its end or limit."""

    slot: int
    """The lane of the bank that it starts from."""
    limit: int
    """The most steps to take."""
    key: npt.NDArray[np.uint32]  # [2]
    schedule: Schedule | None
    finished: Callable[[Run], None]
    """To be called once it is over."""
    draws: PolicyDraws | None = None
    """What the policy draws; None where it draws nothing."""
    keep: bool = False
    """Whether scores and actions are kept; runs longer than the horizon have to."""
    owner: Any = None
    """What it is a part of."""
    steps: int = 0
    code: int = 0
    """What its last step was like; see `program`."""
    rewards: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    first_scores: Any = None
    kept: list[tuple[Array, Array, Array]] = field(default_factory=list)
    """Rewards, scores and actions of each call, each [steps, …]."""

    def again(self) -> Run:
        """Forget what was done, to be started anew."""
        self.steps = self.code = 0
        self.kept, self.first_scores = [], None
        if self.draws is not None:
            self.draws.begin()
        return self

    def all_kept(self) -> tuple[Array, Array, Array]:
        """Return rewards, scores and actions, each [steps, …]."""
        rewards, scores, actions = zip(*self.kept, strict=True)
        return np.concatenate(rewards), np.concatenate(scores), np.concatenate(actions)


class Group:
    """A group of lanes on one device."""

    def __init__(self, program: Program, device: Any, params: Any) -> None:
        self.program, self.device, self.params = program, device, params
        self.runs: list[Run | None] = [None] * program.size
        self._busy = np.zeros(program.size, bool)
        self._keeps = np.zeros(program.size, bool)
        self.free = list(range(program.size))[::-1]
        self.lanes: Lanes | None = None
        self.flying: Outcome | None = None
        """What the call under way will give."""
        calls = -(-program.settings.horizon // program.chunk)
        self._rewards = np.zeros((program.size, calls, program.chunk), np.float32)
        self._done = np.zeros(program.size, np.int64)
        self._limit = np.zeros(program.size, np.int64)
        self._begins = np.zeros(program.size, bool)
        self._slot = np.zeros(program.size, np.int32)
        self._key = np.zeros((program.size, 2), np.uint32)
        self._scheduled: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether any lane has something to do."""
        return len(self.free) < len(self.runs)

    def begin(self, runs: Sequence[Run]) -> None:
        """Give runs to free lanes."""
        if not runs:
            return
        lanes = [self.free.pop() for _ in runs]
        for lane, run in zip(lanes, runs, strict=True):
            self.runs[lane] = run
            if run.schedule is not None or run.draws is not None:
                self._scheduled.add(lane)
        self._begins[lanes] = self._busy[lanes] = True
        self._keeps[lanes] = [run.keep for run in runs]
        self._slot[lanes] = [run.slot for run in runs]
        self._key[lanes] = np.stack([run.key for run in runs])
        self._done[lanes], self._limit[lanes] = 0, [run.limit for run in runs]

    def launch(self, bank: Start) -> None:
        """Begin a call of the program; lanes that begin do so in this bank."""
        program = self.program
        if self.lanes is None:
            still = np.zeros((program.tiles, program.lanes), bool)
            self.lanes = Lanes(bank, program.jax.device_put(still, self.device))
        orders = program.jax.device_put(self._orders(), self.device)
        self.lanes, self.flying = program.advance(self.params, self.lanes, bank, orders)
        self._begins[:] = False

    def land(self) -> list[Run]:
        """Wait for the call under way; return the runs that it finished."""
        assert self.flying is not None
        outcome, self.flying = self.flying, None
        rewards, codes = _by_lane(outcome.rewards), _by_lane(outcome.codes)  # [lanes, steps]
        ends = (codes & ENDED) != 0
        ended = ends.any(axis=1)
        budget = np.minimum(self._limit - self._done, self.program.chunk)
        taken = np.where(ended, ends.argmax(axis=1) + 1, budget)
        calls = self._done // self.program.chunk
        at = np.flatnonzero(self._busy)
        short = at[~self._keeps[at]]
        self._rewards[short, calls[short]] = rewards[short]
        first = at[self._done[at] == 0]
        if len(first):
            scores = np.asarray(outcome.first_scores)
            scores = scores.reshape(-1, *scores.shape[2:])[first]
            for lane, row in zip(first.tolist(), scores, strict=True):
                self.runs[lane].first_scores = row
        self._keep(outcome, at, taken, rewards)
        self._done[at] += taken[at]
        bad = np.any(codes > ENDED, axis=1)
        over = at[ended[at] | (self._done[at] >= self._limit[at]) | bad[at]]
        return [self._release(lane, codes[lane], int(taken[lane])) for lane in over.tolist()]

    def abandon(self) -> list[Run]:
        """Take everything away from the lanes; return the runs, which have to start anew."""
        runs = [run.again() for run in self.runs if run is not None]
        self.lanes = self.flying = None
        return runs

    def _release(self, lane: int, codes: Array, taken: int) -> Run:
        run = self.runs[lane]
        assert run is not None
        run.steps = int(self._done[lane])
        run.code = int(np.bitwise_or.reduce(codes[:taken]))
        if not run.keep:
            calls = -(-run.steps // self.program.chunk)
            run.rewards = self._rewards[lane, :calls].reshape(-1)[: run.steps].copy()
        self.runs[lane] = None
        self._busy[lane] = False
        self.free.append(lane)
        self._scheduled.discard(lane)
        return run

    def _keep(self, outcome: Outcome, at: Array, taken: Array, rewards: Array) -> None:
        """Keep rewards, scores and actions of those runs that want them."""
        wanted = at[self._keeps[at]].tolist()
        if not wanted:
            return
        scores, actions = np.asarray(outcome.scores), np.asarray(outcome.actions)
        for lane in wanted:
            tile, place = divmod(lane, self.program.lanes)
            run, count = self.runs[lane], int(taken[lane])
            assert run is not None
            run.kept.append(
                (
                    rewards[lane, :count].copy(),
                    scores[tile, :count, place].copy(),
                    actions[tile, :count, place].copy(),
                )
            )

    def _orders(self) -> Orders:
        program = self.program
        orders = program.no_orders()
        shape = (program.tiles, program.lanes)
        budget = np.minimum(self._limit - self._done, program.chunk)
        budget[self.free] = 0
        orders.take[...] = self._begins.reshape(shape)
        orders.slot[...] = self._slot.reshape(shape)
        orders.key[...] = self._key.reshape(*shape, 2)
        orders.budget[...] = budget.reshape(shape)
        for lane in sorted(self._scheduled):
            self._schedule(orders, lane)
        return orders

    def _schedule(self, orders: Orders, lane: int) -> None:
        """Write the actions and the draws of a lane for the next steps."""
        run = self.runs[lane]
        assert run is not None
        tile, place = divmod(lane, self.program.lanes)
        done, schedule, draws = int(self._done[lane]), run.schedule, run.draws
        if draws is not None:
            self._draw(orders, run, (tile, place), done)
        if schedule is not None and done < len(schedule):
            steps = slice(min(len(schedule) - done, self.program.chunk))
            self._give(orders, (tile, place), steps, schedule, done)
        elif draws is None:
            self._scheduled.discard(lane)

    def _draw(self, orders: Orders, run: Run, at: tuple[int, int], done: int) -> None:
        draws = run.draws
        assert draws is not None
        count = min(self.program.chunk, run.limit - done)
        skipped = min(max(draws.first - done, 0), count)
        if orders.noise is not None:
            orders.noise[at[0], skipped:count, at[1]] = draws.sampled(count - skipped)
        else:
            steps, schedule = draws.explored(count - skipped)
            self._give(orders, at, steps + skipped, schedule)

    @staticmethod
    def _give(
        orders: Orders, at: tuple[int, int], steps: Any, schedule: Schedule, since: int = 0
    ) -> None:
        """Give a lane the actions of a schedule from number `since` on, in these steps."""
        tile, lane = at
        now = slice(since, since + (steps.stop if isinstance(steps, slice) else len(steps)))
        orders.given[tile, steps, lane] = schedule.actions[now]
        orders.is_given[tile, steps, lane] = True
        if schedule.words is not None:
            orders.words[tile, steps, lane] = schedule.words[now]
            orders.ranked[tile, steps, lane] = True
        elif orders.ranked is not None:
            orders.ranked[tile, steps, lane] = False


def _by_lane(values: Any) -> Array:
    """Turn [tiles, steps, lanes] round to [lanes of the group, steps]."""
    array = np.asarray(values)
    return array.transpose(0, 2, 1).reshape(-1, array.shape[1])
