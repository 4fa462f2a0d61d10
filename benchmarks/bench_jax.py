"""How fast a study in JAX is: python benchmarks/bench_jax.py [--device gpu] [--part PART]

The parts are `study` (a paper-scale study of a MinAtar game, with the time to compile), `share`
(how much of what the bare environment and policy can do a large study reaches), `processes` (the
same game in plain NumPy on the process engine) and `many` (seconds against moments, up to 100,000,
and how many of these fail under margins of β = 0.999 from 25,000 others). Each result is written as
soon as it is there. Compiled programs are kept in a folder of the run.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = tempfile.TemporaryDirectory(prefix="bench-jax-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{FOLDER.name}/compiled")

import numpy as np  # noqa: E402
from results import Results, add_options  # noqa: E402

import safemargin as sm  # noqa: E402
from safemargin.core.jax_library import devices, load_jax  # noqa: E402
from safemargin.engines import available_cores  # noqa: E402
from safemargin.engines.jax.program import Program  # noqa: E402
from safemargin.engines.jax.supported import parts_in_jax  # noqa: E402

COMMAND = "python benchmarks/bench_jax.py"
GAME, AGENT = "jax:pgx:minatar-breakout", "zoo:minatar-breakout"
ROCKET, PILOT = "jax:safemargin:rocket", "zoo:rocket"
NUMPY_GAME = str(Path(__file__).with_name("numpy_breakout.py")) + ":make"
PAPER = {"trial_plan": "paper"}
COARSE = {**PAPER, "sampling_error": 1.0}
SECONDS_GOALS = {"cpu": 60.0, "gpu": 10.0}
LIGHT = {"gamma": 0.9, "n_values": (4,), "trials": 8, "max_enumerated": 0}
"""Settings with a horizon of 44 steps for hundreds of thousands of moments."""


def study(name: str, settings: dict[str, Any], env: str = GAME, policy: str = AGENT) -> sm.Study:
    """Make a study in a folder of this run."""
    return sm.Study.create(Path(FOLDER.name) / name, env, policy, settings)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that some work takes, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def bare_speed(made: sm.Study, device: str, seconds: float) -> float:
    """Return the steps a second of environment and policy alone, in as many lanes as a group has.

    An episode that ends begins again where the lane began.
    """
    jax = load_jax("the benchmark")
    functional, policy = parts_in_jax(made.job())
    program = Program(functional, policy, made.settings, devices(device)[:1])
    lanes = program.size
    keys = np.arange(2 * lanes, dtype=np.uint32).reshape(lanes, 2)
    first = jax.vmap(functional.reset)(keys)

    def step(at: Any, number: Any) -> tuple[Any, Any]:
        state, observation = at
        scores, _ = policy.apply(policy.params, observation, None)
        now = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        state, seen, reward, over, late = jax.vmap(functional.step)(state, scores.argmax(1), now)
        again = over | late

        def pick(new: Any, old: Any) -> Any:
            return jax.numpy.where(again.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        return jax.tree.map(pick, (state, seen), first), reward

    run = jax.jit(lambda at: jax.lax.scan(step, at, jax.numpy.arange(program.chunk)))
    at = jax.block_until_ready(run(first))[0]
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        at = jax.block_until_ready(run(at))[0]
        calls += 1
    return calls * lanes * program.chunk / (time.perf_counter() - began)


@functools.cache
def paper_scale(device: str, scale: int) -> tuple[float, float, float, Any]:
    """Collect the paper's study: 500 natural and 500 spread moments, six n, horizon 459.

    A return in breakout varies much more than one in Pong, so that ε̂ = 0.2 takes twenty times as
    many rollouts as in the paper's games, and ε̂ = 1 about as many. Return the seconds of the
    doctor, of the first two moments (nearly all of them to compile) and of all the others, and the
    status.
    """
    doctor, made = timed(lambda: study("paper", COARSE))
    compiling, _ = timed(lambda: made.collect(1, 1, device=device))
    seconds, status = timed(lambda: made.collect(scale, scale, device=device))
    return doctor, compiling, seconds, status


def measure_study(results: Results, device: str, scale: int) -> None:
    """Time the paper's study."""
    doctor, compiling, seconds, status = paper_scale(device, scale)
    results.record(
        f"jax_study_seconds_{device}",
        seconds,
        SECONDS_GOALS[device],
        note="goal: at most; ε̂ = 1 (ε̂ = 0.2 takes about 20 times the trials), "
        f"{2 * scale} moments, {status.trials:,} trials, {status.simulator_steps:,} steps; before "
        f"that {doctor:.0f} s for the doctor and {compiling:.0f} s for the first two moments, "
        f"nearly all to compile; {available_cores()} cores",
    )


def measure_share(results: Results, device: str, scale: int) -> None:
    """Compare a study with ε̂ = 0.2 with the bare environment and policy."""
    made = study("fine", PAPER)
    made.collect(1, 1, device=device)
    seconds, status = timed(lambda: made.collect(scale, scale, device=device))
    bare = bare_speed(made, device, 5.0)
    results.record(
        f"jax_device_share_{device}",
        status.simulator_steps / seconds / bare,
        0.5,
        note=f"{status.simulator_steps / seconds:,.0f} of {bare:,.0f} steps/s, everything of the "
        f"study included: ε̂ = 0.2, {2 * scale} moments, {status.trials:,} trials, "
        f"{status.simulator_steps:,} steps, {seconds:.0f} s",
    )


def measure_processes(results: Results, device: str, moments: int, scale: int) -> None:
    """Compare trials a second with those of the process engine on the game in plain NumPy."""
    ordinary = study("processes", COARSE, NUMPY_GAME)
    slow, held = timed(lambda: ordinary.collect(moments, moments, engine="processes"))
    _, _, fast, status = paper_scale(device, scale)
    results.record(
        f"jax_over_processes_{device}",
        (status.trials / fast) / (held.trials / slow),
        30.0,
        note=f"{status.trials / fast:,.0f} : {held.trials / slow:,.0f} trials/s; "
        f"{status.trials:,} and {held.trials:,} trials of {status.simulator_steps:,} and "
        f"{held.simulator_steps:,} steps; {available_cores()} processes",
    )


def measure_many(results: Results, device: str, known: int, fresh: int) -> None:
    """Time studies of up to 100,000 moments of a short game, and check β = 0.999 on them.

    Margins are fitted to 25,000 natural moments; how many of 100,000 fresh ones fail is counted.
    """
    began = time.perf_counter()
    fitted = study("fitted", LIGHT, ROCKET, PILOT)
    fitted.collect(1, 0, device=device)
    fitted.collect(known, 0, device=device)
    margins = fitted.fit(0.999)
    calibrated = time.perf_counter() - began
    unseen, spent = study("unseen", {**LIGHT, "seed": 1}, ROCKET, PILOT), 0.0
    for count in (fresh // 1000, fresh // 100, fresh // 10, fresh // 2, fresh):
        seconds, status = timed(partial(unseen.collect, count, 0, device=device))
        spent += seconds
        results.record(
            f"jax_seconds_{count}_moments_{device}",
            spent,
            None,
            note=f"rocket, {status.simulator_steps:,} steps, horizon 44, n = 4, 8 trials",
        )
        tuples = unseen.tuples(margins.proxy)
        bounds = margins.bound.at(tuples.proxies)  # [moments, n]
        promised = np.isfinite(bounds) & (tuples.proxies <= margins.highest_proxy)[:, np.newaxis]
        failed = int((promised & (tuples.criticalities > bounds)).any(axis=1).sum())
        results.record(
            f"jax_rare_failures_percent_{device}",
            100 * failed / len(tuples),
            0.15,
            note=f"goal: at most; {failed} of {len(tuples):,} fresh moments of rocket fail, of "
            f"which {int(promised.any(axis=1).sum()):,} have a bound; β = 0.999 from {known:,} "
            f"natural moments in {calibrated:.0f} s, all in {time.perf_counter() - began:.0f} s",
        )


PARTS = ("study", "processes", "share", "many")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, quick="a tenth of the moments")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--part", choices=PARTS, action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    devices(options.device)
    results = Results(f"{COMMAND} --device {options.device}", options)
    less = 10 if options.quick else 1
    for part in options.part or PARTS:
        if part == "study":
            measure_study(results, options.device, 500 // less)
        elif part == "share":
            measure_share(results, options.device, 50 // less)
        elif part == "processes":
            measure_processes(results, options.device, available_cores(), 500 // less)
        else:
            measure_many(results, options.device, 25_000 // less, 100_000 // less)


if __name__ == "__main__":
    main()
