"""What learned proxies grant and cost: python benchmarks/bench_learned.py

The shares are those that `python reproduction/learned.py` found by nested cross-validation and kept
beside the stored studies. Measured here: the seconds that learning takes on 500 + 500 moments whose
features are recorded, and a monitor that runs a probe in comparison with the policy it watches, one
right after the other, as in a control loop.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from results import Results, add_options

from safemargin.margins.learned.choosing import choose
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy
from safemargin.policies.features import with_value

sys.path.insert(0, str(Path(__file__).parents[1] / "reproduction"))

from learned import FILE, LESSONS_FILE, STUDIES, TOLERANCES, Stored
from stored import read_json

COMMAND = "python benchmarks/bench_learned.py"
GOALS = {
    "bound": ("share_of_perfect", {"pong": 0.75, "beamrider": 0.35}),
    "margin": ("share_of_perfect_margin_promise", {"pong": 0.9, "beamrider": 0.4}),
}
TOLERANCE = 0.5


def shares(results: Results) -> None:
    """Record the share of the perfect margin that each promise grants each agent."""
    at = TOLERANCES.index(TOLERANCE)
    for path in sorted(STUDIES.glob(f"*/{FILE}")):
        agent = path.parent.name
        found = read_json(path, "results", "perfect")
        for promise, (name, goals) in GOALS.items():
            row = found["results"][f"learned, {promise}"][at]
            note = (
                f"ζ = {TOLERANCE:g}: {row['mean_margin']:.1f} of {found['perfect'][at]:.1f} "
                f"actions; {row['failed']} of {row['granted']} granted margins fail "
                f"({row['failed'] / row['granted']:.1%})"
            )
            share = row["mean_margin"] / found["perfect"][at]
            goal = goals[agent.partition("-")[0]]
            results.record(f"{name}_{agent.replace('-', '_')}", share, goal, note=note)


def learning(results: Results) -> None:
    """Time the choice among all models on the largest stored study."""
    stored = Stored.read(STUDIES / "beamrider-a3c" / LESSONS_FILE)
    own = ~stored.lessons.labels  # without cheap labels
    lessons, natural = stored.lessons.take(own), stored.natural[own]
    began = time.perf_counter()
    choice = choose(lessons, natural, stored.n_values, tolerances=TOLERANCES)
    seconds = time.perf_counter() - began
    note = f"goal: at most; beamrider-a3c, {len(lessons)} moments; {choice.recipe} wins"
    results.record("learn_seconds", seconds, 120.0, note=note)


def watching(steps: int, results: Results) -> None:
    """Time a monitor with a probe beside the policy it watches."""
    policy = load_policy("zoo:pong-a3c")
    monitor = Monitor("zoo:pong-a3c", tolerance=1.0, call_at=2)
    frames = np.random.default_rng(0).integers(0, 256, (16, 1, 4, 84, 84), dtype=np.uint8)
    memory = policy.initial_memory(1)
    forward, looked, watched = np.empty(steps), np.empty(steps), np.empty(steps)
    for step in range(-20, steps):  # the first few warm up
        frame = frames[step % len(frames)]
        began = time.perf_counter()
        policy.scores(frame)
        scored = time.perf_counter()
        seen = policy.features(frame, memory)
        features = with_value(seen)[0]
        ready = time.perf_counter()
        monitor.step(seen.scores[0], features=features)
        done = time.perf_counter()
        if step >= 0:
            forward[step], looked[step] = scored - began, ready - scored
            watched[step] = done - ready
    network, features_too, probe = (np.median(each) * 1e6 for each in (forward, looked, watched))
    note = (
        f"goal: at most; {probe:.0f} of {network:.0f} µs, zoo:pong-a3c, batch 1, medians of "
        f"{steps:,}; {features_too:.0f} µs with the hidden layer as output"
    )
    results.record("monitor_probe_share", float(probe / network), 0.05, note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, quick="a tenth of the monitor's steps, and no learning")
    options = parser.parse_args()
    measured = Results(COMMAND, options)
    shares(measured)
    watching(3000 // (10 if options.quick else 1), measured)
    if not options.quick:
        learning(measured)
