"""The commands that measure: doctor, collect, status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from safemargin.cli.base import (
    FINDING,
    INTERRUPTED,
    OK,
    AddCommand,
    add_environment_arguments,
    add_scores,
    add_study,
    environment_arguments,
    print_json,
    whole_numbers,
)
from safemargin.core.settings import ActionChoice, Settings, TrialPlan
from safemargin.study.plays import describe_plays

ENVIRONMENT_HELP = (
    "a Gymnasium id (CartPole-v1), atari:GAME (the paper's preprocessing), "
    "or file.py:function / package.module:function that returns an environment"
)
POLICY_HELP = (
    "an .onnx file, a Stable-Baselines3 .zip, zoo:NAME (a bundled agent), "
    "or file.py:name / package.module:name of a policy, a PyTorch module or a function"
)


def add_study_commands(command: AddCommand) -> None:
    """Declare the commands with their options."""
    doctor = command(
        "doctor",
        run_doctor,
        "find out whether an environment can be measured, how, and if not, why",
        "example:\n  safemargin doctor atari:pong --policy agent.onnx --opening 400\n"
        "exit status 1 where the environment cannot be measured",
    )
    doctor.add_argument("environment", metavar="ENV", help=ENVIRONMENT_HELP)
    doctor.add_argument("--policy", metavar="P", help=POLICY_HELP)
    _add_environment_options(doctor)
    doctor.add_argument("--seed", type=int, default=0, help="of the experiments (default 0)")
    doctor.add_argument(
        "--opening", type=int, default=0, metavar="K", help="up to K random actions at the start"
    )
    doctor.add_argument(
        "--action-choice", choices=get_args(ActionChoice), default="greedy", help="default greedy"
    )

    collect = command(
        "collect",
        run_collect,
        "run episodes, choose moments and measure their criticality (Algorithm 2)",
        "Run the same command again to go on after an interruption, or with larger --natural and\n"
        "--spread to extend a study. The result does not depend on --workers or --engine.\n\n"
        "A margin of confidence 0.95 takes 19 natural moments at least, and 95 (better 475) to be\n"
        "calibrated in each of five parts of the proxy's range; 0.99 takes 99 and 495 (2,475),\n"
        "0.999 takes 999 and 4,995 (24,975).\n\n"
        "examples:\n  safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole "
        "--natural 100 --spread 100\n"
        "  safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole --plan  # the cost first\n"
        "  safemargin collect atari:pong agent.onnx -o runs/pong --opening 400",
    )
    collect.add_argument("environment", metavar="ENV", help=ENVIRONMENT_HELP)
    collect.add_argument("policy", metavar="POLICY", help=POLICY_HELP)
    collect.add_argument(
        "-o", "--output", type=Path, required=True, metavar="STUDY", help="the study's folder"
    )
    collect.add_argument(
        "--natural",
        type=int,
        default=500,
        help="moments drawn evenly from episodes (default 500); margins at a confidence of 0.95 "
        "need 19 of them at least, at 0.99 99, at 0.999 999, and are sharper with 25 times that",
    )
    collect.add_argument(
        "--spread", type=int, default=500, help="moments spread over proxy values (default 500)"
    )
    collect.add_argument("--workers", type=int, help="how many (default: one on each core)")
    collect.add_argument(
        "--engine",
        choices=["local", "processes", "ray"],
        help="where workers run: in this process, in processes of this machine (default, unless "
        "there is one worker), or on Ray, started here and ended again unless --address is given",
    )
    collect.add_argument(
        "--address", metavar="HOST:PORT", help="with --engine ray: the cluster to join, or auto"
    )
    collect.add_argument(
        "--gpus-per-worker",
        type=float,
        default=0.0,
        metavar="G",
        help="with --engine ray: GPUs set apart for each worker's policy, e.g. 0.25 (default 0)",
    )
    _add_environment_options(collect)
    collect.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="FILE.PY:NAME",
        help="record a proxy of your own besides the built-in ones",
    )
    planning = collect.add_argument_group("what will it cost")
    planning.add_argument(
        "--plan",
        action="store_true",
        help="collect nothing: measure a few moments, throw them away, and tell what this very "
        "command would cost without --plan (or what is left of it, where STUDY has begun): "
        "trials, simulator steps and time for each n, with ranges, disk, and what is cheaper",
    )
    planning.add_argument(
        "--plan-moments",
        type=int,
        metavar="M",
        help="measure so many, two of each phase at least (default 12, or one for each worker); "
        "more give narrower ranges",
    )
    planning.add_argument(
        "--plan-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="begin no further moment after S seconds (default 60); Ctrl-C ends it sooner, and "
        "gives the plan from what is there",
    )
    _add_settings(collect)

    status = command(
        "status", run_status, "show what is in a study, what is left, and the time left"
    )
    add_study(status)


def _add_environment_options(parser: argparse.ArgumentParser) -> None:
    add_environment_arguments(parser)
    add_scores(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """One option for each field of Settings; None where the default shall hold."""
    group = parser.add_argument_group("what is measured (a study keeps these)")
    defaults = Settings()

    def add(name: str, kind: Callable[[str], Any], text: str, **more: Any) -> None:
        default = getattr(defaults, name)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            type=kind,
            help=text if default is None else f"{text} (default {shown})",
            **more,
        )

    add("gamma", float, "discount factor γ")
    group.add_argument(
        "--n",
        dest="n_values",
        type=whole_numbers,
        metavar="N,N,…",
        help="S: how many actions are random (default 1,2,4,8,16,32)",
    )
    add("horizon_error", float, "relative error accepted for the finite horizon")
    add("trial_plan", str, "which trials a moment gets", choices=get_args(TrialPlan))
    add("trials", int, "plan fixed: so many for each n")
    add("sampling_error", float, "other plans: half-width at which to stop, in reward units")
    add("sampling_confidence", float, "confidence α of that half-width")
    add("min_trials", int, "other plans: trials of a moment and n, at least")
    add("max_trials", int, "other plans: trials of a moment and n, at most")
    add("largest_loss", float, "plans rule-of-three, anytime: what one trial can lose at most")
    add("smallest_loss", float, "plan anytime: what one trial loses at least")
    add("action_choice", str, "how the policy acts", choices=get_args(ActionChoice))
    add("epsilon", float, "chance of a random action under epsilon-greedy")
    add("opening", int, "begin episodes with up to this many random actions")
    add("exclude_last", int, "never choose the last so many steps (default: the largest n)")
    add("max_episode_steps", int, "cut episodes that do not end by themselves")
    add("selection_proxy", str, "the proxy that spreads the spread moments")
    add("seed", int, "of everything random")


# -- doctor ------------------------------------------------------------------------------------


def run_doctor(options: argparse.Namespace) -> int:
    from safemargin.environments import EnvironmentSpec
    from safemargin.environments.doctor import examine
    from safemargin.policies import load_policy

    spec = EnvironmentSpec.parse(options.environment, environment_arguments(options))
    policy = None
    if options.policy is not None:
        policy = load_policy(options.policy, kind=options.scores)
    settings = Settings(opening=options.opening, action_choice=options.action_choice)
    note = None if options.json else lambda text: print(text, file=sys.stderr)
    diagnosis = examine(spec.make, policy, settings, seed=options.seed, progress=note)
    if options.json:
        print_json(diagnosis.to_dict())
    else:
        marks = {"ok": "  ok      ", "note": "  note    ", "problem": "  PROBLEM "}
        for finding in diagnosis.findings:
            print(marks[finding.level] + finding.text)
        print(diagnosis.verdict)
    return OK if diagnosis.measurable else FINDING


# -- collect -----------------------------------------------------------------------------------


def run_collect(options: argparse.Namespace) -> int:
    from safemargin.cli.console import ProgressBar
    from safemargin.engines import check_engine
    from safemargin.study.collection import check_collect
    from safemargin.study.study import Study

    place = {
        "workers": options.workers,
        "address": options.address,
        "gpus_per_worker": options.gpus_per_worker,
    }
    check_collect(options.natural, options.spread, options.workers)
    check_engine(options.engine, **place)
    if options.plan:
        return _show_plan(options, place)
    with ProgressBar() as progress:
        study = Study.create(
            options.output,
            options.environment,
            options.policy,
            _settings(options),
            env_arguments=environment_arguments(options),
            scores=options.scores,
            proxies=options.proxy,
            progress=progress,
        )
        study.collect(
            options.natural, options.spread, engine=options.engine, progress=progress, **place
        )
    with study:
        return _show_status(study, options)


def _show_plan(options: argparse.Namespace, place: dict[str, Any]) -> int:
    """What the same command without --plan would cost."""
    from safemargin.cli.console import ProgressBar
    from safemargin.cli.show_plan import print_plan
    from safemargin.study.planning import plan_study

    try:
        with ProgressBar() as progress:
            plan = plan_study(
                options.output,
                options.environment,
                options.policy,
                _settings(options),
                natural=options.natural,
                spread=options.spread,
                env_arguments=environment_arguments(options),
                scores=options.scores,
                proxies=options.proxy,
                engine=options.engine,
                moments=options.plan_moments,
                seconds=options.plan_seconds,
                progress=progress,
                **place,
            )
    except KeyboardInterrupt:
        print("\nstopped before a moment was measured, so there is no plan", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        print_json(plan.to_dict())
    else:
        print_plan(plan)
    return INTERRUPTED if plan.interrupted else OK


# -- status ------------------------------------------------------------------------------------


def run_status(options: argparse.Namespace) -> int:
    from safemargin.study.study import Study

    with Study.open(options.study) as study:
        return _show_status(study, options)


def _show_status(study: Any, options: argparse.Namespace) -> int:
    from safemargin.core.text import duration
    from safemargin.criticality.coalescing import BYTES_PER_STATE

    status = study.status()
    if options.json:
        print_json(
            {
                "study": str(study.path),
                "environment": study.environment,
                "policy": study.policy,
                "settings": json.loads(study.settings.to_json()),
                "proxies": study.proxies,
                "default_proxy": study.default_proxy,
                "diagnosis": study.diagnosis,
                "natural_moments_needed": _moments_needed(),
                **status.to_dict(),
            }
        )
        return OK
    print(f"study        {study.path}")
    given = ", ".join(f"{name}={value}" for name, value in study.environment["arguments"].items())
    print(f"environment  {study.environment['name']}{f' ({given})' if given else ''}")
    print(f"policy       {study.policy['description']} ({study.policy['kind']} scores)")
    print(
        f"episodes     {status.episodes}; {status.chosen_moments} moments chosen, "
        f"{status.distinct_moments} distinct, from {status.distinct_episodes} distinct episodes"
    )
    if status.distinct_moments < 0.9 * status.chosen_moments:
        print("             the rest are copies: --opening K in a new study gives different starts")
    few_plays = describe_plays(status.plays, status.chosen_moments)
    if few_plays:
        print(f"plays        {few_plays}")
    for phase, done in status.moments.items():
        print(f"{phase:<12} {done} of {status.wanted[phase]} moments measured for every n")
    print(f"calibration  {_calibration(status.moments['natural'])}")
    print(f"trials       {status.trials:,} in {status.estimates:,} estimates")
    if status.without_spread:
        print(
            f"             {status.without_spread:,} sampled ones saw no spread at all: a loss "
            "rarer than one in that many trials may have been missed"
        )
    if status.capped:
        print(
            f"capped       {status.capped} estimates reached {study.settings.max_trials} trials "
            f"before ±{study.settings.sampling_error:g} was sure; raise --max-trials or "
            "--sampling-error in a new study"
        )
    wasted = status.wasted_steps / max(status.simulator_steps, 1)
    print(
        f"cost         {status.simulator_steps:,} simulator steps"
        + (f" ({wasted:.1%} begun ahead in vain)" if wasted >= 0.001 else "")
        + f", {duration(status.worker_seconds)} of one worker"
    )
    if status.remembered_states:
        print(
            f"memory       at most {status.remembered_states:,} states of one moment, "
            f"{status.remembered_states * BYTES_PER_STATE / 1e6:.1f} MB"
        )
    if status.estimates_left:
        left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)}"
        print(f"left         {status.estimates_left:,} of the estimates{left}")
    else:
        print("left         nothing")
    return OK


def _moments_needed() -> dict[str, int]:
    """Confidence → natural moments that a calibrated margin takes at least."""
    from safemargin.margins.bounds.conformal import moments_needed

    return {f"{level:g}": moments_needed(level, 1) for level in (0.9, 0.95, 0.99, 0.999)}


def _calibration(natural: int) -> str:
    """Which confidences so many natural moments allow."""
    allowed = [level for level, needed in _moments_needed().items() if natural >= needed]
    missing = [
        f"{level} needs {needed}" for level, needed in _moments_needed().items() if natural < needed
    ]
    text = f"allows a confidence of {allowed[-1]}" if allowed else "allows no confidence yet"
    return f"{text}; {', '.join(missing)} natural moments" if missing else text


# -- options read ------------------------------------------------------------------------------


def _settings(options: argparse.Namespace) -> Settings:
    names = [field.name for field in fields(Settings)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return Settings.from_mapping(given)
