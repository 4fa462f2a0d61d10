"""How much cheaper measuring is than the loop one would write: python benchmarks/bench_rollouts.py

Both sides run here, one after the other, in one thread. The other side is Algorithm 1 to the
letter with the tools at hand: the emulator's saved state, Gymnasium's Atari wrappers, and one call
of the PyTorch network a step. It runs whole for some of the moments (with `--quick`, one trial of
each n); the steps of the others, which are known from our own run, are counted at the speed seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from results import Results, add_options
from torch import nn

from safemargin.core.records import Episode, EpisodeKey, Moment
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.engines.base import Job, MomentTask, Worker
from safemargin.engines.processes import ProcessEngine
from safemargin.environments import EnvironmentSpec
from safemargin.environments.ale import EmulatorState
from safemargin.policies import load_policy

COMMAND = "python benchmarks/bench_rollouts.py"
GAMES = {"pong": ("pong", "pong-a3c"), "beamrider": ("beam_rider", "beamrider-a3c")}
STEPS_GOALS = {"pong": 12.0, "beamrider": 4.0}
CLOCK_GOALS = {"pong": 25.0, "beamrider": 8.0}
NOTHING_RANDOM = Randomness(environment=False, policy=False)


def make_job(short: str, **settings: Any) -> Job:
    game, agent = GAMES[short]
    return Job(
        EnvironmentSpec.parse(f"atari:{game}"),
        load_policy(f"zoo:{agent}"),
        Settings(**settings),
        (),
        "snapshot",
        NOTHING_RANDOM,
    )


def choose_moments(worker: Worker, count: int) -> list[tuple[Episode, int, tuple[Any, ...]]]:
    """Return a random step of a random life in each of this many games, as a natural study has.

    The games are numbered from 8 on, behind those in which some trials are always repeated.
    """
    generator = np.random.default_rng(0)
    chosen: list[tuple[Episode, int, tuple[Any, ...]]] = []
    index = 8
    while len(chosen) < count:
        lives = worker.runner.run_game(EpisodeKey("natural", index))
        index += 1
        life = int(generator.integers(len(lives)))
        last = lives[life].steps - 32
        if last > 0:
            earlier = tuple(each.actions for each in lives[:life])
            chosen.append((lives[life], int(generator.integers(last)), earlier))
    return chosen


@dataclass
class Ours:
    """What our side took, and what Algorithm 1 to the letter would have to simulate."""

    steps: int = 0
    seconds: float = 0.0
    literal: int = 0
    wasted: int = 0


def run_ours(worker: Worker, moments: list[Any]) -> Ours:
    total = Ours()
    trials = worker.runner.settings.trials
    for episode, step, earlier in moments:
        began = time.perf_counter()
        measurer = MomentMeasurer(
            worker.runner, episode, step, NOTHING_RANDOM, earlier_lives=earlier
        )
        lengths: list[list[int]] = []
        run = measurer._run

        def spied(every: Any, run: Any = run, lengths: Any = lengths) -> None:
            run(every)
            lengths += [
                [len(trial.rollout.all_rewards()) for trial in series.trials[: series.judged]]
                for series in every
            ]

        measurer._run = spied  # type: ignore[method-assign]
        measurements = measurer.measure(*worker.runner.settings.n_values)
        total.seconds += time.perf_counter() - began
        total.steps += sum(each.steps for each in measurements)
        total.wasted += sum(each.wasted for each in measurements)
        horizon = worker.runner.settings.horizon
        total.literal += sum(map(len, earlier)) + step + min(horizon, episode.steps - step)
        for each in lengths:
            # Where we take every sequence once, Algorithm 1 would still run all its trials.
            fixed = worker.runner.settings.trial_plan == "fixed"
            total.literal += int(np.mean(each) * (trials if fixed else len(each)))
    return total


def torch_network(agent: str) -> Callable[[np.ndarray], int]:
    """Return the agent's network in PyTorch, as its trainer holds it."""
    import onnx
    from onnx import numpy_helper

    from safemargin.policies.zoo import zoo_path

    weights = {
        each.name.removesuffix(".half"): torch.tensor(numpy_helper.to_array(each)).float()
        for each in onnx.load(zoo_path(agent)).graph.initializer
    }
    actions = len(weights["policy.bias"])
    network = nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, actions),
    )
    names = ["torso.layers.0", "torso.layers.2", "torso.layers.4", "hidden.0", "policy"]
    layers = [layer for layer in network if not isinstance(layer, nn.ReLU | nn.Flatten)]
    with torch.no_grad():
        for name, layer in zip(names, layers, strict=True):
            layer.weight.copy_(weights[f"{name}.weight"])
            layer.bias.copy_(weights[f"{name}.bias"])

    @torch.no_grad()
    def act(observation: np.ndarray) -> int:
        return int(network(torch.from_numpy(observation)[None].float() / 255.0).argmax())

    return act


class UsersLoop:
    """Algorithm 1 to the letter, in the usual parts."""

    def __init__(self, game: str, agent: str, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.act = torch_network(agent)
        self.settings = settings
        name = EnvironmentSpec.parse(f"atari:{game}").make().unwrapped.spec.id  # type: ignore[union-attr]
        base = gym.make(name, frameskip=1, repeat_action_probability=0.0)
        self.env: Any = FrameStackObservation(
            AtariPreprocessing(base, noop_max=0, terminal_on_life_loss=True), 4
        )
        self.env.reset(seed=0)
        self.generator = np.random.default_rng(0)

    def restore(self, point: Any) -> np.ndarray:
        """Put emulator, frame stack and lives back."""
        emulator, frames, lives = point
        EmulatorState().restore(self.env.unwrapped.ale, emulator)
        self.env.obs_queue.clear()
        self.env.obs_queue.extend(frames)
        self.env.env.lives = lives
        return np.stack(frames)

    def rollout(self, point: Any, n: int) -> tuple[float, int]:
        """One trial: its discounted return and its steps."""
        observation, total = self.restore(point), 0.0
        for step in range(self.settings.horizon):
            action = (
                int(self.generator.integers(self.env.action_space.n))
                if step < n
                else self.act(observation)
            )
            observation, reward, terminated, truncated, _ = self.env.step(action)
            total += self.settings.gamma**step * float(np.sign(reward))
            if terminated or truncated:
                return total, step + 1
        return total, self.settings.horizon

    def run(self, point: Any, trials: int) -> tuple[int, float]:
        """Return steps and seconds for this many trials of every n."""
        began, steps = time.perf_counter(), 0
        for n in self.settings.n_values:
            for _ in range(trials):
                steps += self.rollout(point, n)[1]
        return steps, time.perf_counter() - began


def point_of(worker: Worker, moment: Any) -> Any:
    """Return the state at a moment, in the parts that the user's loop keeps."""
    episode, step, earlier = moment
    saved = worker.runner.go_to(episode, step, earlier).snapshot
    return saved.state.emulator, list(saved.observation), saved.state.lives


def compare(short: str, *, moments: int, whole: int, results: Results) -> Worker:
    """Steps and wall-clock of one game; the user's loop runs whole for this many of the moments."""
    job = make_job(short)
    worker = Worker(job)
    chosen = choose_moments(worker, moments)
    ours = run_ours(worker, chosen)
    loop = UsersLoop(*GAMES[short], job.settings)
    trials = job.settings.trials if whole else 1
    steps = seconds = 0.0
    for moment in chosen[: whole or moments]:
        more_steps, more_seconds = loop.run(point_of(worker, moment), trials)
        steps, seconds = steps + more_steps, seconds + more_seconds
    a_step = seconds / steps
    note = f"{moments} moments, {ours.literal:,} : {ours.steps:,} steps"
    results.record(f"steps_saved_{short}", ours.literal / ours.steps, STEPS_GOALS[short], note=note)
    results.record(
        f"wall_clock_{short}",
        a_step * ours.literal / ours.seconds,
        CLOCK_GOALS[short],
        note=f"{a_step * 1e6:.0f} : {ours.seconds / ours.steps * 1e6:.0f} µs a step; "
        f"the loop ran {steps:,.0f} steps",
    )
    if not whole:
        return worker
    paper = Worker(make_job(short, trial_plan="paper", max_trials=400))
    under = run_ours(paper, chosen[: max(2, moments // 4)])
    results.record(
        f"steps_saved_{short}_paper_rule",
        under.literal / under.steps,
        None,
        note=f"{under.wasted / under.steps:.1%} of our steps spent on discarded trials",
    )
    paper.close()
    return worker


def ceiling_share(worker: Worker, moments: list[Any], results: Results) -> None:
    """Our steps per second against the emulator and the network alone, measured apart."""
    ours = run_ours(worker, moments)
    runner = worker.runner
    episode = moments[0][0]
    simulator: Any = runner.simulator
    emulator, actions = simulator._emulator, simulator._actions
    simulator.reset(episode.seed)
    began, count = time.perf_counter(), 0
    while count < 4000:
        for action in episode.actions:
            for _ in range(simulator.stack.frame_skip):
                emulator.act(actions[action])
            count += 1
        simulator.reset(episode.seed)
    emulator_step = (time.perf_counter() - began) / count
    size = len(runner.simulators)
    observation = simulator.reset(episode.seed)
    batch = np.stack([observation] * size)
    runner.policy.scores(batch)
    began = time.perf_counter()
    for _ in range(400):
        runner.policy.scores(batch)
    network_step = (time.perf_counter() - began) / 400 / size
    ceiling = 1 / (emulator_step + network_step)
    speed = ours.steps / ours.seconds
    note = (
        f"{speed:.0f} of {ceiling:.0f} steps/s; emulator {emulator_step * 1e6:.0f} µs, "
        f"network {network_step * 1e6:.0f} µs"
    )
    results.record("ceiling_share", speed / ceiling, 0.8, note=note)


def time_engine(engine: Any, warm_up: list[MomentTask], tasks: list[MomentTask]) -> float:
    """Return seconds for the tasks, once every worker has started."""
    for _ in engine.run(warm_up):
        pass
    began = time.perf_counter()
    for _ in engine.run(tasks):
        pass
    seconds = time.perf_counter() - began
    engine.close()
    return seconds


def scaling(*, moments: int, results: Results, with_ray: bool) -> None:
    """Two workers against one, and Ray against processes."""
    job = make_job("pong")
    worker = Worker(job)
    tasks = [
        MomentTask(episode, Moment(episode.key, step), job.settings.n_values, earlier)
        for episode, step, earlier in choose_moments(worker, moments)
    ]
    worker.close()
    short = [
        MomentTask(task.episode, task.moment, task.n_values[:1], task.earlier_lives)
        for task in tasks[:2]
    ]
    two = time_engine(ProcessEngine(job, 2), short, tasks)
    one = time_engine(ProcessEngine(job, 1), short, tasks)
    note = f"{moments} moments, {one:.1f} : {two:.1f} s"
    results.record("two_workers", one / two, 1.85, note=note)
    if with_ray:
        from safemargin.engines.ray import RayEngine

        ray = time_engine(RayEngine(job, 2), short, tasks)
        note = f"{moments} moments, {two:.1f} : {ray:.1f} s"
        results.record("ray_over_processes", two / ray, 0.85, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, quick="a reduced round, under two minutes")
    parser.add_argument("--only", choices=["pong", "beamrider", "scaling"], help="a part of it")
    arguments = parser.parse_args()
    quick, only = arguments.quick, arguments.only
    results = Results(COMMAND, arguments)
    if only in (None, "pong"):
        worker = compare(
            "pong", moments=3 if quick else 12, whole=0 if quick else 1, results=results
        )
        ceiling_share(worker, choose_moments(worker, 3 if quick else 12), results)
        worker.close()
    if only in (None, "beamrider"):
        compare(
            "beamrider", moments=2 if quick else 8, whole=0 if quick else 1, results=results
        ).close()
    if only in (None, "scaling"):
        scaling(moments=4 if quick else 30, results=results, with_ray=True)


if __name__ == "__main__":
    main()
