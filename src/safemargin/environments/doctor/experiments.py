"""Experiments on a live environment: is a restored run the same as the uninterrupted one?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from safemargin.environments import graph
from safemargin.environments.doctor.exploration import Explorer
from safemargin.environments.simulator import Simulator, Snapshot


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step of a run: its output, and a hash of each layer afterwards."""

    action: Any
    seen: bytes  # observation, reward and ends, encoded
    layers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Run:
    """An uninterrupted run from a reset."""

    seed: int
    start: bytes
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A point at which an uninterrupted run was saved, and what followed in that run."""

    snapshot: Snapshot
    observation: bytes
    layers: dict[str, bytes]
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a repeated run first differed."""

    step: int
    layers: tuple[str, ...] = ()
    """The layers whose state differed, outermost first."""
    silent: bool = False
    """Only internal state differed, after a correct restore: a clock, a counter."""


def take(simulator: Simulator, action: Any, *, layers: bool) -> Outcome:
    """Take one step and record it."""
    step = simulator.step(action)
    seen = graph.encoded_bytes(
        [step.observation, step.reward, step.terminated, step.truncated, simulator.mask]
    )
    return Outcome(action, seen, simulator.layer_digests() if layers else {})


def plain_run(simulator: Simulator, seed: int, choose: Explorer, steps: int) -> Run:
    """Run without interruption."""
    start = graph.encoded_bytes([simulator.reset(seed), simulator.mask])
    outcomes: list[Outcome] = []
    while not simulator.ended and len(outcomes) < steps:
        outcomes.append(take(simulator, choose(simulator), layers=False))
    return Run(seed, start, outcomes)


def repeats(simulator: Simulator, run: Run) -> Divergence | None:
    """Reset with the same seed, repeat the actions, and return the first difference, if any."""
    if graph.encoded_bytes([simulator.reset(run.seed), simulator.mask]) != run.start:
        return Divergence(0)
    for number, outcome in enumerate(run.outcomes, start=1):
        if simulator.ended or take(simulator, outcome.action, layers=False).seen != outcome.seen:
            return Divergence(number)
    return None


def record(
    simulator: Simulator,
    choose: Explorer,
    seeds: Iterator[int],
    generator: np.random.Generator,
    *,
    points: int,
    steps: int,
) -> list[Continuation]:
    """Save at random points of uninterrupted runs, and record what followed each of them."""
    found: list[Continuation] = []
    for episode in range(5 * points):
        if len(found) >= points:
            break
        simulator.reset(next(seeds))
        unfinished: list[Continuation] = []
        saved = 0
        while not simulator.ended:
            at_start = simulator.steps == 0 and episode % 2 == 0
            if saved < 5 and len(found) < points and (at_start or generator.random() < 0.05):
                point = Continuation(
                    simulator.save(),
                    graph.encoded_bytes([simulator.observation]),
                    simulator.layer_digests(),
                )
                saved += 1
                found.append(point)
                unfinished.append(point)
            unfinished = [point for point in unfinished if len(point.outcomes) < steps]
            if not unfinished and (saved == 5 or len(found) >= points or simulator.steps > 500):
                break
            outcome = take(simulator, choose(simulator), layers=bool(unfinished))
            for point in unfinished:
                point.outcomes.append(outcome)
    return found


def compare(simulator: Simulator, point: Continuation) -> Divergence | None:
    """Restore the point, repeat the actions, and return the first difference, if any."""
    simulator.restore(point.snapshot)
    layers = simulator.layer_digests()
    if layers != point.layers:
        return Divergence(0, _differing(layers, point.layers))
    if graph.encoded_bytes([simulator.observation]) != point.observation:
        return Divergence(0)
    silent: Divergence | None = None
    for number, outcome in enumerate(point.outcomes, start=1):
        if simulator.ended:
            return Divergence(number)
        again = take(simulator, outcome.action, layers=True)
        if again.seen != outcome.seen:
            return Divergence(number, _differing(again.layers, outcome.layers))
        if silent is None and again.layers != outcome.layers:
            silent = Divergence(number, _differing(again.layers, outcome.layers), silent=True)
    return silent


def disturb(
    simulator: Simulator, choose: Explorer, seed: int, generator: np.random.Generator
) -> None:
    """Play part of another episode, as may happen between a save and its restore."""
    simulator.reset(seed)
    for _ in range(int(generator.integers(1, 40))):
        if simulator.ended:
            break
        simulator.step(choose(simulator))


def compare_all(
    simulator: Simulator,
    points: Sequence[Continuation],
    choose: Explorer,
    seeds: Iterator[int],
    generator: np.random.Generator,
) -> list[Divergence | None]:
    """Compare each point twice, in random order, sometimes after a disturbance."""
    results: list[Divergence | None] = []
    for _ in range(2):
        for index in generator.permutation(len(points)):
            if len(results) % 4 == 1:  # not always: a reset can cost more than everything else
                disturb(simulator, choose, next(seeds), generator)
            results.append(compare(simulator, points[index]))
    return results


def draws_randomness(simulator: Simulator, point: Continuation) -> bool:
    """Whether any random generator is used while the point's actions are taken."""
    simulator.restore(point.snapshot)
    before = simulator.random_state()
    for outcome in point.outcomes:
        if simulator.ended:
            break
        simulator.step(outcome.action)
    return simulator.random_state() != before


def outputs_after_reseeding(
    simulator: Simulator, point: Continuation, generator: np.random.Generator
) -> list[bytes]:
    """Return what the point's actions lead to after the generators were reseeded."""
    simulator.restore(point.snapshot)
    simulator.reseed(generator)
    outputs = []
    for outcome in point.outcomes:
        if simulator.ended:
            break
        outputs.append(take(simulator, outcome.action, layers=False).seen)
    return outputs


def count_distinct(
    simulator: Simulator, begin: Callable[[int], None], choose: Explorer, starts: int, steps: int
) -> int:
    """Count the different episodes; only those with equal beginnings are run to the full length."""

    def run_on(seen: bytes, length: int) -> bytes:
        outcomes = [seen]
        while not simulator.ended and len(outcomes) <= length:
            outcomes.append(take(simulator, choose(simulator), layers=False).seen)
        return graph.digest(outcomes)

    short = min(steps, 20)
    groups: dict[bytes, list[tuple[Snapshot, Any]]] = {}
    for index in range(starts):
        begin(index)
        beginning = run_on(graph.encoded_bytes([simulator.observation]), short)
        groups.setdefault(beginning, []).append((simulator.save(), choose.memory))
    distinct = 0
    for beginning, members in groups.items():
        if len(members) == 1:
            distinct += 1
            continue
        futures = set()
        for snapshot, memory in members:
            simulator.restore(snapshot)
            choose.memory = memory
            futures.add(run_on(beginning, steps - short))
        distinct += len(futures)
    return distinct


def _differing(first: dict[str, bytes], second: dict[str, bytes]) -> tuple[str, ...]:
    return tuple(name for name in first if first[name] != second.get(name))
