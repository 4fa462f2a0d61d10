"""A group of lanes, computed by one call of the program, and what each of them is doing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array
from safemargin.engines.jax.draws import Schedule
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.program import Lanes, Orders, Outcome, Start
from safemargin.engines.jax.runs import Finished, Runs, Taken

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Landed:
    """What a call was found to have done."""

    taken: list[tuple[Runs, Taken]] = field(default_factory=list)
    finished: list[tuple[Runs, Finished]] = field(default_factory=list)

    def deliver(self) -> list[Runs]:
        """Tell the runs; return those of which some are over."""
        for runs, steps in self.taken:
            assert runs.taken is not None
            runs.taken(steps)
        for runs, over in self.finished:
            runs.finished(over)
        return [runs for runs, _ in self.finished]


class Group:
    """A group of lanes on all devices of the program."""

    def __init__(self, parts: Parts, params: Any) -> None:
        program = self.program = parts.program
        self._parts, self.params = parts, params
        size = program.size
        self.lanes: Lanes | None = None
        self.flying: Outcome | None = None
        """What the call under way will give."""
        self._runs: dict[int, Runs] = {}
        """The batches whose runs are in lanes, by their ids."""
        self._batch = np.zeros(size, np.int64)
        self._number = np.zeros(size, np.int64)
        self._busy = np.zeros(size, bool)
        self._keeps = np.zeros(size, bool)
        self._begins = np.zeros(size, bool)
        self._done = np.zeros(size, np.int64)
        self._limit = np.zeros(size, np.int64)
        self._last = np.zeros(size, np.int64)
        """After how many steps a lane needs no more orders than to go on."""
        self._slot = np.zeros(size, np.int32)
        self._key = np.zeros((size, 2), np.uint32)
        calls = -(-program.settings.horizon // program.chunk)
        self._rewards = np.zeros((size, calls, program.chunk), np.float32)
        self._returns = np.zeros(size)
        self._first_scores: Array | None = None
        self._orders = program.no_orders()

    @property
    def busy(self) -> bool:
        """Whether any lane has something to do."""
        return bool(self._runs)

    @property
    def beginning(self) -> bool:
        """Whether runs begin in the next call."""
        return bool(self._begins.any())

    @property
    def free(self) -> int:
        """The number of lanes that have nothing to do."""
        return self.program.size - int(np.count_nonzero(self._busy))

    def begin(self, runs: Runs, numbers: Numbers) -> None:
        """Give some runs of a batch to free lanes."""
        lanes = np.flatnonzero(~self._busy)[: len(numbers)]
        self._runs[id(runs)] = runs
        self._batch[lanes], self._number[lanes] = id(runs), numbers
        self._begins[lanes] = self._busy[lanes] = True
        self._keeps[lanes] = runs.taken is not None
        self._slot[lanes] = runs.slots[numbers]
        self._key[lanes] = 0 if runs.keys is None else runs.keys[numbers]
        self._done[lanes], self._limit[lanes] = 0, runs.limits[numbers]
        self._last[lanes] = runs.last_of[numbers]
        self._write(runs, lanes, 0)

    def launch(self, bank: Start) -> None:
        """Begin a call of the program; lanes that begin do so in this bank."""
        program = self.program
        if self.lanes is None:
            self.lanes = program.still(bank)
        orders = program.jax.device_put(self._ordered(), program.split)
        self.lanes, self.flying = program.advance(self.params, self.lanes, bank, orders)
        self._begins[:] = False
        self._orders = program.no_orders()

    def land(self) -> Landed:
        """Wait for the call under way; return what it did."""
        assert self.flying is not None
        outcome, self.flying = self.flying, None
        landed = Landed()
        rewards = np.asarray(outcome.rewards).reshape(self.program.size, -1)
        codes, taken = np.asarray(outcome.codes).ravel(), np.asarray(outcome.taken).ravel()
        at = np.flatnonzero(self._busy)
        short = at[~self._keeps[at]]
        self._rewards[short, self._done[short] // self.program.chunk] = rewards[short]
        self._note_first_scores(outcome, at[self._done[at] == 0])
        for runs, lanes in self._by_runs(at[self._keeps[at]]):
            landed.taken.append((runs, self._taken(outcome, lanes, rewards, taken)))
        self._done[at] += taken[at]
        over = at[(codes[at] != 0) | (self._done[at] >= self._limit[at])]
        self._returns[over] = 0.0
        counted = over[~self._keeps[over]]
        self._returns[counted] = self._parts.returns_of(
            self._rewards.reshape(self.program.size, -1)[counted],
            self._done[counted],
            codes[counted],
        )
        for runs, lanes in self._by_runs(over):
            landed.finished.append((runs, self._finished(lanes, codes)))
        self._busy[over] = False
        left = set(self._batch[self._busy].tolist())
        self._runs = {key: runs for key, runs in self._runs.items() if key in left}
        return landed

    def abandon(self) -> list[tuple[Runs, Numbers]]:
        """Take everything away from the lanes; return the runs, which have to begin anew."""
        every = [
            (runs, self._number[lanes]) for runs, lanes in self._by_runs(np.flatnonzero(self._busy))
        ]
        self.lanes = self.flying = None
        for runs, numbers in every:
            runs.again(numbers)
        return every

    def _by_runs(self, lanes: Numbers) -> Iterator[tuple[Runs, Numbers]]:
        """Yield each batch that has runs in these lanes, and the lanes."""
        if not len(lanes):
            return
        keys = self._batch[lanes]
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        ends = np.flatnonzero(np.diff(sorted_keys)) + 1
        for part in np.split(order, ends):
            yield self._runs[int(keys[part[0]])], lanes[part]

    def _note_first_scores(self, outcome: Outcome, lanes: Numbers) -> None:
        """Remember the scores at the step where runs began."""
        if not len(lanes):
            return
        scores = np.asarray(outcome.first_scores)
        scores = scores.reshape(self.program.size, *scores.shape[2:])
        if self._first_scores is None:
            self._first_scores = np.zeros_like(scores)
        self._first_scores[lanes] = scores[lanes]

    def _taken(
        self, outcome: Outcome, lanes: Numbers, rewards: Array, taken: npt.NDArray[np.int32]
    ) -> Taken:
        tile, place = np.divmod(lanes, self.program.lanes)
        return Taken(
            numbers=self._number[lanes],
            since=self._done[lanes],
            count=taken[lanes].astype(np.int64),
            rewards=rewards[lanes],
            scores=np.asarray(outcome.scores)[tile, :, place],
            actions=np.asarray(outcome.actions)[tile, :, place],
        )

    def _finished(self, lanes: Numbers, codes: npt.NDArray[np.uint8]) -> Finished:
        assert self._first_scores is not None
        return Finished(
            numbers=self._number[lanes],
            steps=self._done[lanes],
            codes=codes[lanes],
            returns=self._returns[lanes],
            first_scores=self._first_scores[lanes],
        )

    # -- orders --------------------------------------------------------------------------------

    def _ordered(self) -> Orders:
        """Return the orders of the next call."""
        program, orders = self.program, self._orders
        going_on = np.flatnonzero(self._busy & ~self._begins & (self._last > self._done))
        for runs, lanes in self._by_runs(going_on):
            for since in np.unique(self._done[lanes]).tolist():
                self._write(runs, lanes[self._done[lanes] == since], since)
        budget = np.minimum(self._limit - self._done, program.chunk)
        shape = (program.tiles, program.lanes)
        orders.take[...] = self._begins.reshape(shape)
        orders.slot[...] = self._slot.reshape(shape)
        orders.key[...] = self._key.reshape(*shape, 2)
        orders.budget[...] = np.where(self._busy, budget, 0).reshape(shape)
        return orders

    def _write(self, runs: Runs, lanes: Numbers, since: int) -> None:
        """Write what these lanes draw and the actions they are given in the next steps."""
        numbers = self._number[lanes]
        if runs.draws is not None:
            for lane, number in zip(lanes.tolist(), numbers.tolist(), strict=True):
                self._draw(runs, lane, number, since)
        schedule = runs.schedule
        if schedule is None:
            return
        steps = np.arange(min(schedule.longest - since, self.program.chunk))
        row, step = np.nonzero(since + steps < schedule.lengths[numbers][:, np.newaxis])
        if len(row):
            actions = schedule.actions[numbers[row], since + step]
            words = None if schedule.words is None else schedule.words[numbers[row], since + step]
            self._give(lanes[row], step, Schedule(actions, words))

    def _draw(self, runs: Runs, lane: int, number: int, since: int) -> None:
        """Write what a policy draws in one lane."""
        assert runs.draws is not None
        draws = runs.draws[number]
        count = min(self.program.chunk, int(self._limit[lane]) - since)
        skipped = min(max(draws.first - since, 0), count)
        if self._orders.noise is not None:
            tile, place = divmod(lane, self.program.lanes)
            self._orders.noise[tile, skipped:count, place] = draws.sampled(count - skipped)
        else:
            steps, schedule = draws.explored(count - skipped)
            self._give(np.full(len(steps), lane), steps + skipped, schedule)

    def _give(self, lanes: Numbers, steps: Numbers, schedule: Schedule) -> None:
        """Give actions to lanes, each in one of the next steps."""
        orders = self._orders
        tile, place = np.divmod(lanes, self.program.lanes)
        at = (tile, steps, place)
        orders.given[at] = schedule.actions
        orders.is_given[at] = True
        if orders.ranked is not None:
            orders.ranked[at] = schedule.words is not None
            if schedule.words is not None:
                orders.words[at] = schedule.words
