"""How the cost of a study grows, and the memory of a worker: python benchmarks/bench_growth.py

Cost is counted in simulator steps and in processor seconds, on CartPole with the bundled agent;
every line should be straight. Memory is that of one process over 1,000 moments of Pong with all its
emulators, at a short horizon. Writes docs/images/growth.png.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import Results, add_options

from safemargin.core.records import Episode, EpisodeKey, Moment
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.engines.base import EpisodeTask, Job, MomentTask, Worker
from safemargin.environments import EnvironmentSpec
from safemargin.policies import load_policy

COMMAND = "python benchmarks/bench_growth.py"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "growth.png"
NOTHING_RANDOM = Randomness(environment=False, policy=False)

Line = tuple[list[float], list[float], list[float]]
"""What was varied, simulator steps, seconds."""


def make_worker(environment: str, agent: str, settings: Settings) -> Worker:
    policy = load_policy(f"zoo:{agent}")
    spec = EnvironmentSpec.parse(environment)
    return Worker(Job(spec, policy, settings, (), "snapshot", NOTHING_RANDOM))


def episode_of(worker: Worker, index: int) -> Episode:
    piece = next(worker.run(EpisodeTask(EpisodeKey("natural", index))))
    return piece.result[0]  # type: ignore[return-value]


def measure(worker: Worker, moments: int) -> tuple[int, float]:
    """Return simulator steps and seconds for this many moments, a third into their episodes."""
    steps, seconds = 0, 0.0
    for index in range(8, 8 + moments):
        episode = episode_of(worker, index)
        moment = Moment(episode.key, episode.steps // 3)
        n_values = worker.runner.settings.n_values
        began = time.process_time()
        for piece in worker.run(MomentTask(episode, moment, n_values)):
            steps += piece.result[1].steps  # type: ignore[union-attr]
        seconds += time.process_time() - began
    return steps, seconds


def grow(values: list[int], settings: Any, moments: Any) -> Line:
    steps, seconds = [], []
    for value in values:
        worker = make_worker("CartPole-v1", "cartpole", settings(value))
        more_steps, more_seconds = measure(worker, moments(value))
        steps.append(float(more_steps))
        seconds.append(more_seconds)
        worker.close()
    return [float(value) for value in values], steps, seconds


def straightness(line: Line) -> float:
    """Return R² of a straight line through the seconds over what was varied."""
    x, _, y = map(np.asarray, line)
    fitted = np.polyval(np.polyfit(x, y, 1), x)
    return float(1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def resident() -> float:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def memory_over(moments: int) -> tuple[list[int], list[float]]:
    settings = Settings(gamma=0.8, n_values=(1, 4, 8), trials=24)
    worker = make_worker("atari:pong", "pong-a3c", settings)
    episodes = [episode_of(worker, index) for index in range(8, 12)]
    generator = np.random.default_rng(0)
    counts, sizes = [0], [resident()]
    for count in range(1, moments + 1):
        episode = episodes[count % len(episodes)]
        moment = Moment(episode.key, int(generator.integers(200)))
        for _ in worker.run(MomentTask(episode, moment, settings.n_values)):
            pass
        if count % max(moments // 100, 1) == 0:
            counts.append(count)
            sizes.append(resident())
            print(f"\r{count} of {moments} moments, {sizes[-1]:.0f} MB", end="", flush=True)
    print()
    worker.close()
    return counts, sizes


def draw(lines: dict[str, Line], memory: tuple[list[int], list[float]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for cell, (label, (values, _, seconds)) in zip(axes, lines.items(), strict=False):
        cell.plot(values, seconds, "o-")
        cell.set(xlabel=label, ylabel="processor seconds", xlim=(0, None), ylim=(0, None))
    axes[3].plot(*memory)
    top = 1.3 * max(memory[1])
    axes[3].set(xlabel="moments of Pong", ylabel="memory of a worker, MB", ylim=(0, top))
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)
    print(f"drawn to {os.path.relpath(PICTURE)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=1000, help="of Pong, for the memory")
    add_options(parser, quick="50 moments of Pong, and no picture")
    arguments = parser.parse_args()
    moments = 50 if arguments.quick else arguments.moments
    results = Results(COMMAND, arguments)
    horizons = [50, 100, 200, 300]
    lines = {
        "moments": grow(
            [5, 10, 20, 40], lambda _: Settings(gamma=0.95, trials=16), lambda value: value
        ),
        "numbers of random actions in S": grow(
            [2, 4, 8, 16],
            # Evenly spread over 5 … 32, so that only their number changes.
            lambda value: Settings(
                gamma=0.95,
                trials=16,
                n_values=tuple(np.linspace(5, 32, value).astype(int).tolist()),
            ),
            lambda _: 10,
        ),
        "horizon": grow(
            horizons,
            lambda value: Settings(gamma=0.01 ** (1 / value), n_values=(16,), trials=16),
            lambda _: 10,
        ),
    }
    for name, line in zip(("moments", "n_values", "horizon"), lines.values(), strict=True):
        results.record(f"straightness_{name}", straightness(line), 0.98, note="R² of the seconds")
    memory = memory_over(moments)
    tenth = max(len(memory[1]) // 10, 1)
    early, late = np.mean(memory[1][tenth : 2 * tenth]), np.mean(memory[1][-tenth:])
    note = f"{early:.0f} MB after a tenth of {moments} moments, {late:.0f} MB at the end"
    results.record("memory_flatness", float(early / late), 0.95, note=note)
    if not arguments.quick:
        draw(lines, memory)


if __name__ == "__main__":
    main()
