"""What a world without a snapshot costs to measure: python benchmarks/bench_replay.py

There, states are told apart by what led to them: the seed and all actions so far. The hash of that
grows with each action. The other side, in the same run, hashes the whole history whenever two
states are compared, whose cost grows with the square of an episode's length. Both must give the
same estimates. Processor time; needs `pip install 'gymnasium[box2d]'`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from results import Results, add_options

from safemargin.core.records import Episode, EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.rollouts import Runner
from safemargin.environments import ReplaySimulator, graph, make_simulator
from safemargin.policies import load_policy

COMMAND = "python benchmarks/bench_replay.py"
SETTINGS = Settings(n_values=(1, 4), trials=8, gamma=0.96)
STEP = 400


class Plain(ReplaySimulator):
    """Replay that hashes all it did each time."""

    def digest(self) -> bytes:
        hashed = hashlib.sha256(repr(self._seed).encode())
        hashed.update(b"".join(graph.encoded_bytes([event]) for event in self._history))
        self._hashed = hashed
        return hashed.digest()[:16]


def braced(observations: Any) -> Any:
    """A walker that braces its legs and stands: its episodes are as long as they can be."""
    return np.tile(np.float32([1.0, 0.5, 0.0, -0.5]), (len(observations), 1))


def measure(simulator: Any, policy: Any, episode: Episode, step: int) -> Any:
    """Return the estimates of a moment and the processor seconds that they took."""
    runner = Runner(simulator, policy, SETTINGS)
    began = time.process_time()
    measurer = MomentMeasurer(runner, episode, step, Randomness(environment=False, policy=False))
    found = [each.estimate for each in measurer.measure(*SETTINGS.n_values)]
    return found, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, quick="one moment")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    policy = load_policy(braced, kind="actions")
    fast = make_simulator(gym.make("BipedalWalker-v3"), way="replay")
    plain = Plain(make_simulator(gym.make("BipedalWalker-v3"), way="replay").env)
    runner, keys = Runner(fast, policy, SETTINGS), (EpisodeKey("natural", n) for n in range(100))
    standing = (one for one in map(runner.run_episode, keys) if one.steps > 2 * STEP)
    ours = theirs = 0.0
    moments = 1 if options.quick else 2
    for episode in itertools.islice(standing, moments):
        mine, seconds = measure(fast, policy, episode, STEP)
        same, others = measure(plain, policy, episode, STEP)
        assert mine == same
        ours, theirs = ours + seconds, theirs + others
    note = f"BipedalWalker-v3, {moments} moments at step {STEP}: {theirs:.1f} : {ours:.1f} s of CPU"
    Results(COMMAND, options).record("replay_hash", theirs / ours, None, note=note)


if __name__ == "__main__":
    main()
