"""The proof that a worker runs the environment and the policy of the study, not their namesakes.

The same code behaves differently where it reads another environment variable, another file or
another version of itself. So every worker makes a few trial runs before its first task, and the
driver compares them with its own, bit for bit.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.records import Array, Episode, EpisodeKey
from safemargin.criticality.rollouts import Runner
from safemargin.criticality.signals import Signal
from safemargin.engines.base import Job, Piece
from safemargin.engines.surroundings import Surroundings
from safemargin.environments import Simulator, environment_identity, graph, make_simulator
from safemargin.environments.identity import behaviour, random_walk
from safemargin.environments.simulator import layers_of
from safemargin.errors import EngineFault
from safemargin.policies.proxies import ALL_KINDS, Proxy

TRIAL_STEPS = 256
"""Steps of all trial runs together."""
TRIAL_RUNS = 8
"""The most trial runs, however short they are."""
SIGNAL_STEPS, SIGNAL_SEED = 64, 20_261_119
"""Random steps along which a signal in `info` is compared, and their seed."""
DIGEST_VERSION = 1
"""Raise it with any change to the trial runs or their digest; other versions are not compared."""


def _fingerprint(scores: Any, history: Sequence[Any], n: int | None) -> float:
    """Return a number that only equal observations share."""
    return float(int.from_bytes(hashlib.sha256(graph.encoded_bytes(history[-1:])).digest()[:6]))


OBSERVATION = Proxy("the observation", _fingerprint, ALL_KINDS, history=1)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the environment and the policy did in one process."""

    behaviour: str
    """A hash of what the environment does under random actions, as in its identity."""
    limits: tuple[int, ...]
    """Gymnasium's time limits around the environment, in steps."""
    runs: tuple[Episode, ...]
    """The trial runs: episodes under the policy."""
    surroundings: Surroundings
    signals: Mapping[str, str] = field(default_factory=dict)
    """A hash of each signal under random actions that stands in the environment's `info`."""

    def digest(self, first_signal: str) -> dict[str, Any]:
        """Return hashes of the trial runs, to compare with those of a later collection.

        The hash of a study's first signal is part of that of its runs. What the environment does
        under random actions is left out: its identity says so already.
        """
        runs = hashlib.sha256(f"{self.limits!r}{self.signals.get(first_signal, '')}".encode())
        proxies: dict[str, Any] = {}
        for run in self.runs:
            runs.update(f"{run.steps} {run.ended}".encode())
            for part, values in _parts(run).items():
                own = part in run.proxies and part != OBSERVATION.name
                hasher = proxies.setdefault(part, hashlib.sha256()) if own else runs
                hasher.update(f"{values.dtype.str} {values.shape}".encode() + values.tobytes())
        return {
            "version": DIGEST_VERSION,
            "runs": runs.hexdigest(),
            "proxies": {name: hasher.hexdigest() for name, hasher in proxies.items()},
            "signals": {name: of for name, of in self.signals.items() if name != first_signal},
        }


@dataclass(eq=False)
class Witness:
    """Reads the answers of workers, and compares what they do with what the driver does."""

    job: Job
    advice: str
    """What to do if a worker does something else."""

    @cached_property
    def own(self) -> Proof:
        """What the driver's environment and policy do."""
        return prove(self.job, driver=True)

    def read(self, answer: bytes, *, worker: str) -> Iterator[Piece]:
        """Yield the piece in a worker's answer, check the proof in it, or raise the error in it."""
        message: Piece | Proof | Exception = pickle.loads(answer)
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Proof):
            self.check(message, worker=worker)
        else:
            yield message

    def check(self, proof: Proof, *, worker: str) -> None:
        """Raise EngineFault if a worker runs anything other than the driver."""
        difference = _difference(self.own, proof)
        if difference is not None:
            reasons = self.own.surroundings.compared_with(proof.surroundings)
            raise EngineFault(f"{worker} runs {difference}; {reasons}; {self.advice}")


def prove(job: Job, *, driver: bool = False) -> Proof:
    """Make the trial runs; as the driver, raise EngineFault unless the environment is the study's.

    Workers need not: what they do is compared with the driver.
    """
    with job.environment.opened() as env:
        behaves = behaviour(env)
        if driver and job.identity is not None:
            _check_identity(job.identity, environment_identity(job.environment, env, behaves))
        limits = tuple(
            layer._max_episode_steps
            for layer in layers_of(env)
            if isinstance(layer, gym.wrappers.TimeLimit)
        )
        simulator = make_simulator(env, way=job.way)
        runner = Runner(simulator, job.policy, job.settings, (*job.proxies, OBSERVATION))
        runs: list[Episode] = []
        left = TRIAL_STEPS
        while left and len(runs) < TRIAL_RUNS:
            longest = min(left, job.settings.max_episode_steps)
            runner.settings = replace(job.settings, max_episode_steps=longest)
            runs.append(runner.run_episode(EpisodeKey("natural", len(runs))))
            left -= runs[-1].steps
        signals = {
            text: _signal_hash(runner.simulator, signal)
            for text in dict.fromkeys((job.settings.signal, *job.proven_signals))
            if (signal := Signal.parse(text)).in_info
        }
    hashed = hashlib.sha256(b"".join(behaves)).hexdigest()
    return Proof(hashed, limits, tuple(runs), Surroundings.here(), signals)


def _signal_hash(simulator: Simulator, signal: Signal) -> str:
    """Hash the signal along random actions; resets the environment."""
    hasher = hashlib.sha256()
    for _, taken in random_walk(simulator, SIGNAL_SEED, SIGNAL_STEPS):
        if taken is None:
            continue
        hasher.update(f"{signal.value(taken, simulator)!r} ".encode())
    return hasher.hexdigest()


def _check_identity(of_study: str, identity: str) -> None:
    if identity != of_study:
        raise EngineFault(
            "this process does not run the study's environment: it behaves differently (its "
            f"identity is {identity[:19]}…, the study's is {of_study[:19]}…); restore the "
            "environment variables, the working folder and the files as they were when the study "
            "was opened, or open it again"
        )


def _difference(ours: Proof, theirs: Proof) -> str | None:
    """Say what the worker with this proof runs instead; None where it runs the same."""
    for number, (here, there) in enumerate(zip(ours.runs, theirs.runs, strict=False)):
        found = _first_difference(here, there)
        if found is not None:
            step, part = found
            return f"{_described(part, step, here, there)} (trial run {number}, step {step})"
    if ours.limits != theirs.limits:
        return (
            "another environment: its time limit is "
            f"{_few(theirs.limits)} steps, here it is {_few(ours.limits)}"
        )
    if ours.behaviour != theirs.behaviour:
        return "another environment: it behaves differently under random actions"
    if ours.signals != theirs.signals:
        return "another environment: the signal in its info is not the one here"
    return None


def _first_difference(here: Episode, there: Episode) -> tuple[int, str] | None:
    """Return the first step at which two runs differ, and which part of it differs first."""
    ours, theirs = _parts(here), _parts(there)
    steps = min(here.steps, there.steps)
    for step in range(steps):
        for part, values in ours.items():
            if values[step].tobytes() != theirs[part][step].tobytes():
                return step, part
    return None if (here.steps, here.ended) == (there.steps, there.ended) else (steps, "end")


def _parts(run: Episode) -> dict[str, Array]:
    """Return what happens at each step of a run, in the order in which it does, each [steps, …]."""
    seen = {OBSERVATION.name: run.proxies[OBSERVATION.name]}
    return {**seen, "scores": run.scores, **run.proxies, "reward": run.rewards}


def _described(part: str, step: int, here: Episode, there: Episode) -> str:
    """Say what runs there, if this part of a step is the first to differ."""
    if part == "scores":
        ours, theirs = here.scores[step], there.scores[step]
        if np.allclose(ours, theirs, rtol=1e-3, atol=1e-5):
            return (
                "the policy with other rounding: scores of the same observation differ by up to "
                f"{np.abs(ours - theirs).max():.1g}, and a study holds only one of them; collect "
                "it on processors (or GPUs) of one type, with the same number of threads"
            )
        return (
            "another policy: it scores the same observation as "
            f"{_few(theirs)}, here as {_few(ours)}"
        )
    if part == "end":
        ends = [
            f"{'continues' if run.steps > step else run.ended} after {step} steps"
            for run in (there, here)
        ]
        return f"another environment: an episode {ends[0]}, here it {ends[1]}"
    if part in (OBSERVATION.name, "reward"):
        return f"another environment: {part} is not the one here"
    return f"another proxy {part!r}: its value is not the one here"


def _few(numbers: Array | Sequence[int]) -> str:
    """Write a few numbers for people."""
    flat = np.ravel(numbers)
    shown = ", ".join(f"{number:g}" for number in flat[:4])
    return f"[{shown}{', …' if len(flat) > 4 else ''}]"
