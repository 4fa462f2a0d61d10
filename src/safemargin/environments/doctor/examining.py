"""The examination from beginning to end: which checks run, and in which order.

A snapshot is proven, not trusted. The doctor compares restored runs with uninterrupted ones, finds
out by experiment what is random, tries the ways back to a moment in order (snapshot, replay),
names the layer that leaks, and counts how many different episodes the starts give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import gymnasium as gym

from safemargin.core.settings import Settings
from safemargin.environments.ale import native_stickiness
from safemargin.environments.doctor import experiments
from safemargin.environments.doctor.diagnosis import Diagnosis
from safemargin.environments.doctor.examination import Examination
from safemargin.environments.doctor.experiments import Continuation
from safemargin.environments.doctor.exploration import Explorer
from safemargin.environments.doctor.repeatability import (
    check_policy,
    check_randomness,
    check_resets,
    check_returns,
    count_starts,
)
from safemargin.environments.doctor.returns import settings_for
from safemargin.environments.functional.purity import check_pure
from safemargin.environments.functional.wrapped import FunctionalGym
from safemargin.environments.simulator import Simulator, Way
from safemargin.errors import EnvironmentFault, InvalidInput, did_you_mean
from safemargin.policies.base import Policy

_REPLAY_POINTS = 6


def examine(
    make_env: Callable[[], gym.Env[Any, Any]],
    policy: Policy | None = None,
    settings: Settings | None = None,
    *,
    points: int = 20,
    steps: int = 100,
    starts: int = 40,
    start_steps: int = 200,
    seed: int = 0,
    returns: bool = True,
    way: Way | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Examine an environment by experiment; a few thousand steps.

    `way` is the only way back to a moment to try; by default a snapshot, and replay if that fails.
    `points` moments are saved; each is restored twice and compared over up to `steps` steps.
    `starts` episodes of `start_steps` steps are compared with one another. With `returns`, a policy
    plays a few whole episodes, for a mean return that its user can recognise. Bad input raises an
    error; anything the environment does wrong becomes a finding.
    """
    if seed < 0:
        raise InvalidInput(f"the doctor needs a seed of at least 0, got {seed}")
    for name, value in {"points": points, "steps": steps, "starts": starts}.items():
        if value < 1:
            raise InvalidInput(f"the doctor needs {name} of at least 1, got {value}")
    if way not in (None, "snapshot", "replay"):
        raise InvalidInput(f"way {way!r} is unknown; {did_you_mean(str(way), get_args(Way))}")
    chosen = settings or settings_for(policy, None)
    examination = Examination(make_env, policy, chosen, seed, way)
    report = progress or (lambda stage: None)
    try:
        recorded = _find_way(examination, points, steps, report)
        if recorded is not None:
            report("randomness")
            check_randomness(examination, *recorded)
            report("starts")
            count_starts(examination, recorded[0], starts, start_steps)
            if returns and policy is not None:
                report("returns")
                check_returns(examination, policy)
    except EnvironmentFault as fault:
        examination.add("problem", str(fault))
    finally:
        examination.close()
    return examination.diagnosis()


def _find_way(
    examination: Examination, points: int, steps: int, report: Callable[[str], None]
) -> tuple[Simulator, list[Continuation]] | None:
    """Find a way back to a moment that works; None where there is none."""
    simulator = examination.simulator()
    examination.name = simulator.name
    if examination.policy is not None:
        examination.policy.check(simulator.env)
    try:
        explorer = examination.explorer(simulator)
    except InvalidInput as error:  # actions of this kind cannot be drawn at random
        examination.add("problem", str(error))
        return None
    stickiness = native_stickiness(simulator.env)
    if stickiness > 0:
        examination.add(
            "problem",
            f"ALE's native sticky actions are on (repeat_action_probability={stickiness:g}); "
            "its saved state does not hold the previous action, so restored runs go wrong; "
            "make the environment with repeat_action_probability=0 and wrap it in "
            "gymnasium.wrappers.StickyAction instead",
        )
        return None
    live = simulator.env.unwrapped
    if isinstance(live, FunctionalGym):
        report("purity")
        examination.add("ok", check_pure(live.functional, examination.seed))
    report("resets")
    if not check_resets(examination, simulator, explorer):
        return None
    examination.opaque = simulator.opaque()  # now that every attribute is there
    if examination.policy is not None:
        check_policy(examination, examination.policy, simulator, explorer)
    recorded = None
    if examination.asked_way != "replay":
        report("snapshots")
        if unsafe := simulator.opaque(only_unsafe=True):
            examination.add(
                examination.snapshot_failure,
                f"no snapshot was tried: the layer that leaks is {unsafe[0].partition('.')[0]}, "
                f"whose state lives in native objects ({', '.join(unsafe[:4])})",
            )
        else:
            recorded = _try_way(examination, "snapshot", points, steps)
    if recorded is None and examination.asked_way != "snapshot":
        report("replay")
        recorded = _try_way(examination, "replay", min(points, _REPLAY_POINTS), steps)
    return recorded


def _try_way(
    examination: Examination, way: Way, points: int, steps: int
) -> tuple[Simulator, list[Continuation]] | None:
    """Compare restored with uninterrupted runs; None where any of them differs."""
    failure = examination.snapshot_failure if way == "snapshot" else "problem"
    simulator = examination.simulator(way)
    seeds, generator = examination.seeds(), examination.generator
    on_course = examination.explorer(simulator)
    astray = examination.explorer(simulator, random_share=1.0)
    try:
        # Half of the points on the policy's way, half where only mistakes lead.
        recorded = [
            point
            for explorer, share in ((on_course, points - points // 2), (astray, points // 2))
            for point in experiments.record(
                simulator, explorer, seeds, generator, points=share, steps=steps
            )
        ]
        results = experiments.compare_all(simulator, recorded, astray, seeds, generator)
    except EnvironmentFault as fault:
        examination.add(failure, str(fault))
        return None
    wrong = [result for result in results if result is not None and not result.silent]
    examination.continuations, examination.wrong = len(results), len(wrong)
    if wrong:
        first = min(wrong, key=lambda result: result.step)
        examination.add(
            failure,
            f"by {way}, {len(wrong)} of {len(results)} restored runs differ from the "
            f"uninterrupted one, the first at step {first.step}"
            + (_leak(examination, first.layers, simulator) if way == "snapshot" else ""),
        )
        return None
    silent = [result for result in results if result is not None]
    if silent:
        examination.add(
            "note",
            f"layer {silent[0].layers[-1]} holds something that differs from run to run "
            "(a clock or a counter) without changing what comes out: equal states cannot be "
            "recognised there",
        )
    examination.way = way
    examination.add("ok", f"by {way}, all {len(results)} restored runs equal the uninterrupted one")
    return simulator, recorded


def _leak(examination: Examination, differing: tuple[str, ...], simulator: Simulator) -> str:
    """Name the layer that leaks, and the attributes that may be the reason."""
    culprit = _leaking_part(examination, len(simulator.layers))
    if culprit is not None:
        name = type(culprit.env).__name__
    elif differing:
        name = differing[-1]
    else:
        return "; no single layer could be named"
    text = f"; the layer that leaks is {name}"
    suspects = [each for each in examination.opaque if each.startswith(f"{name.split(' #')[0]}.")]
    if suspects:
        return text + ", perhaps through " + ", ".join(suspects[:4])
    return text + ", which keeps state outside its attributes"


def _leaking_part(examination: Examination, depth: int) -> Simulator | None:
    """Return the smallest inner part of the stack of layers whose restored runs go wrong."""
    seeds, generator = examination.seeds(), examination.generator
    for outside in range(depth - 1, -1, -1):
        part = examination.simulator(without=outside)
        explorer = Explorer(part.env, None, examination.seed, random_share=1.0)
        try:
            points = experiments.record(part, explorer, seeds, generator, points=10, steps=40)
            results = experiments.compare_all(part, points, explorer, seeds, generator)
        except EnvironmentFault:
            continue  # this part of the stack cannot run alone
        if any(result is not None and not result.silent for result in results):
            return part
    return None
