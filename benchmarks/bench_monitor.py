"""What a monitor costs in comparison with the policy it watches: python benchmarks/bench_monitor.py

Each step of the monitor is timed right after a forward pass, as in a control loop, so that both
meet the same caches and the same load; shares are of medians.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from results import Results, add_options

from safemargin.margins.bounds.table import Bound
from safemargin.margins.lookup import Margins
from safemargin.margins.natural_proxies import summarise
from safemargin.monitor.monitor import Monitor
from safemargin.policies import load_policy

COMMAND = "python benchmarks/bench_monitor.py"
AGENTS = 10_000
ACTIONS = 6


def margins() -> Margins:
    """Return a table of the usual size: six n, two hundred bins."""
    n_values = (1, 2, 4, 8, 16, 32)
    grid = np.linspace(0, 12, 200)
    return Margins(
        Bound(
            n_values=n_values,
            grid=np.array([grid] * len(n_values)),
            upper=np.outer(np.sqrt(n_values), grid) / 4,
            confidence=0.95,
            method="calibrated",
        ),
        proxy="log_prob_range",
        policy={"kind": "logits"},
        natural_proxies=summarise(np.random.default_rng(0).uniform(0, 12, 1000)),
    )


def one_agent(steps: int, results: Results) -> None:
    policy = load_policy("zoo:pong-a3c")
    monitor = Monitor(margins(), tolerance=1.0, call_at=2)
    frames = np.random.default_rng(0).integers(0, 256, (16, 1, 4, 84, 84), dtype=np.uint8)
    forward, watching = np.empty(steps), np.empty(steps)
    for step in range(-20, steps):  # the first few warm up
        began = time.perf_counter()
        scores, _ = policy.scores(frames[step % len(frames)])
        scored = time.perf_counter()
        monitor.step(scores[0])
        watched = time.perf_counter()
        if step >= 0:
            forward[step], watching[step] = scored - began, watched - scored
        if step % 500 == 499:
            monitor.end_episode()
    network, share = np.median(forward), np.median(watching) / np.median(forward)
    note = (
        f"goal: at most; {np.median(watching) * 1e6:.1f} of {network * 1e6:.0f} µs, zoo:pong-a3c, "
        f"batch 1, medians of {steps:,}; means {watching.mean() / forward.mean():.4f}"
    )
    results.record("monitor_share", float(share), 0.02, note=note)


def many_agents(steps: int, results: Results) -> None:
    monitor = Monitor(margins(), tolerance=1.0, call_at=2, pause=5)
    generator = np.random.default_rng(0)
    batches = generator.normal(0, 2, (8, AGENTS, ACTIONS)).astype(np.float32)
    seconds = np.empty(steps)
    for step in range(-5, steps):
        began = time.perf_counter()
        monitor.step(batches[step % len(batches)])
        if step >= 0:
            seconds[step] = time.perf_counter() - began
    each = np.median(seconds) / AGENTS * 1e6
    note = f"goal: at most; µs an agent, {AGENTS:,} agents × {ACTIONS} actions, median of {steps}"
    results.record("monitor_agent_microseconds", float(each), 1.0, note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, quick="a tenth of the steps")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    one_agent(5000 // scale, Results(COMMAND, options))
    many_agents(1000 // scale, Results(COMMAND, options))
