"""The command line: one verb for each thing a study can do."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from safemargin.arguments import build_parser
from safemargin.commands import BAD_INPUT, FINDING, INTERRUPTED, OK, print_json
from safemargin.errors import EnvironmentFault, InvalidInput, SafemarginError
from safemargin.oversight_commands import OVERSIGHT_COMMANDS
from safemargin.page_commands import PAGE_COMMANDS
from safemargin.reproduce_commands import REPRODUCE_COMMANDS
from safemargin.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # γ on a terminal that has only ASCII
            output.reconfigure(errors="replace")
    options = build_parser(COMMANDS).parse_args(arguments)
    try:
        status: int = options.run(options)
        if sys.stdout is not None:  # None where it was closed by the caller
            sys.stdout.flush()
    except SafemarginError as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        print(
            "\nstopped; all that was finished is kept, run the same command again to go on",
            file=sys.stderr,
        )
        return INTERRUPTED
    except BrokenPipeError:  # e.g. `safemargin status … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        print(f"safemargin: cannot write the answer: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    return status


def _fail(error: SafemarginError, options: argparse.Namespace) -> int:
    status = FINDING if isinstance(error, EnvironmentFault) else BAD_INPUT
    if options.json:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    print(f"safemargin: {error}", file=sys.stderr)
    return status


# -- doctor ------------------------------------------------------------------------------------


def run_doctor(options: argparse.Namespace) -> int:
    from safemargin.doctor import examine
    from safemargin.environments import EnvironmentSpec
    from safemargin.policies import load_policy

    spec = EnvironmentSpec.parse(options.environment, _environment_arguments(options))
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
    from safemargin.console import ProgressBar
    from safemargin.engines import check_engine
    from safemargin.study import Study, check_collect

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
            env_arguments=_environment_arguments(options),
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
    from safemargin.console import ProgressBar
    from safemargin.planning import plan_study
    from safemargin.show_plan import print_plan

    try:
        with ProgressBar() as progress:
            plan = plan_study(
                options.output,
                options.environment,
                options.policy,
                _settings(options),
                natural=options.natural,
                spread=options.spread,
                env_arguments=_environment_arguments(options),
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
    from safemargin.study import Study

    with Study.open(options.study) as study:
        return _show_status(study, options)


def _show_status(study: Any, options: argparse.Namespace) -> int:
    from safemargin.coalescing import BYTES_A_STATE
    from safemargin.console import duration

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
    for phase, done in status.moments.items():
        print(f"{phase:<12} {done} of {status.wanted[phase]} moments measured for every n")
    print(f"calibration  {_calibration(status.moments['natural'])}")
    print(f"trials       {status.trials:,} in {status.estimates:,} estimates")
    if status.without_spread:
        print(
            f"             {status.without_spread:,} sampled ones saw no spread at all: a loss "
            "rarer than one in so many trials may have been missed"
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
            f"{status.remembered_states * BYTES_A_STATE / 1e6:.1f} MB"
        )
    if status.estimates_left:
        left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)}"
        print(f"left         {status.estimates_left:,} of the estimates{left}")
    else:
        print("left         nothing")
    return OK


def _moments_needed() -> dict[str, int]:
    """Confidence → natural moments that a calibrated margin takes at least."""
    from safemargin.bounds import moments_needed

    return {f"{level:g}": moments_needed(level, 1) for level in (0.9, 0.95, 0.99, 0.999)}


def _calibration(natural: int) -> str:
    """Which confidences so many natural moments allow."""
    allowed = [level for level, needed in _moments_needed().items() if natural >= needed]
    missing = [
        f"{level} needs {needed}" for level, needed in _moments_needed().items() if natural < needed
    ]
    text = f"allows a confidence of {allowed[-1]}" if allowed else "allows no confidence yet"
    return f"{text}; {', '.join(missing)} natural moments" if missing else text


# -- fit, margin -------------------------------------------------------------------------------


def run_fit(options: argparse.Namespace) -> int:
    from safemargin.console import print_margins, warnings_as_notes
    from safemargin.study import Study

    with Study.open(options.study) as study, warnings_as_notes():
        margins = study.fit(
            options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
        )
        _warn_if_unfinished(study)
        margins.save(options.output)
    for note in () if margins.bound.unbounded else margins.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.json:
        print_json({"margins": str(options.output), **margins.to_dict()})
    else:
        print_margins(margins, options.tolerance)
        print(f"\nwrote {options.output}")
    return OK


def run_margin(options: argparse.Namespace) -> int:
    from safemargin.margins import Margins

    margins = Margins.load(options.margins)
    proxy = options.proxy if margins.bound.looks_at_n else options.proxy[0]
    if not margins.bound.looks_at_n and len(options.proxy) > 1:
        raise InvalidInput(f"the proxy {margins.proxy!r} has one value, got {options.proxy}")
    found = margins.lookup(proxy, options.tolerance, above=options.above)
    if options.json:
        print_json(
            {
                "margin": found.margin,
                "outside": found.outside,
                "below": found.below,
                "proxy": proxy,
                "proxy_name": margins.proxy,
                "tolerance": options.tolerance,
                "confidence": margins.confidence,
                "method": margins.method,
                "estimand": margins.estimand,
            }
        )
        return OK
    print(found.margin)
    if found.outside:
        treated = "the last bin was used"
        if options.above == "zero":
            treated = "no margin is granted" + " from that n on" * margins.bound.looks_at_n
        print(
            f"note: {margins.proxy} {max(options.proxy):g} lies above {margins.highest_proxy:g}, "
            f"the highest these margins were fitted on; {treated}",
            file=sys.stderr,
        )
    return OK


# -- validate ----------------------------------------------------------------------------------


def run_validate(options: argparse.Namespace) -> int:
    from safemargin.show import print_validation
    from safemargin.study import Study

    with Study.open(options.study) as study:
        validation = study.validate(
            options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
            tolerances=_tolerances(options),
        )
        _warn_if_unfinished(study)
    if options.json:
        print_json(validation.to_dict())
    else:
        print_validation(validation)
    return OK


# -- compare -----------------------------------------------------------------------------------


def run_compare(options: argparse.Namespace) -> int:
    from safemargin.console import ProgressBar
    from safemargin.show import print_comparison
    from safemargin.study import Study

    with Study.open(options.study) as study, ProgressBar() as bar:
        comparison = study.compare(
            options.confidence,
            tolerances=_tolerances(options),
            proxies=options.proxy,
            estimand=options.estimand,
            progress=bar,
        )
        _warn_if_unfinished(study)
    if options.json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison)
    return OK


# -- plot, export ------------------------------------------------------------------------------


def run_plot(options: argparse.Namespace) -> int:
    from safemargin.console import warnings_as_notes
    from safemargin.study import Study

    with Study.open(options.study) as study, warnings_as_notes():
        written = study.plot(
            options.output,
            confidence=options.confidence,
            method=options.method,
            proxy=options.proxy,
            estimand=options.estimand,
            picture_format=options.format,
        )
        _warn_if_unfinished(study)
    if options.json:
        print_json({"figures": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
    return OK


def run_export(options: argparse.Namespace) -> int:
    from safemargin.study import Study

    with Study.open(options.study) as study:
        written = study.export(options.output, steps=options.steps, episodes=options.episodes)
    if options.json:
        print_json({"table": str(written)})
    else:
        print(written)
    return OK


# -- zoo ---------------------------------------------------------------------------------------


def run_zoo(options: argparse.Namespace) -> int:
    from safemargin.zoo import zoo_agents, zoo_card
    from safemargin.zoo.show import print_agents, print_card, summary

    if options.agent is not None:
        card = zoo_card(options.agent)
        if options.json:
            print_json(card)
        else:
            print_card(card)
    elif options.json:
        print_json([summary(card) for card in zoo_agents()])
    else:
        print_agents(zoo_agents())
    return OK


# -- demo --------------------------------------------------------------------------------------


def run_demo(options: argparse.Namespace) -> int:
    from safemargin.demo import run

    run(options.output, workers=options.workers, as_json=options.json)
    return OK


# -- what the commands share -------------------------------------------------------------------


def _warn_if_unfinished(study: Any) -> None:
    status = study.status()
    if status.estimates_left:
        print(
            f"note: the study is not finished ({status.estimates_left:,} estimates are left); "
            "only moments measured for every n are used",
            file=sys.stderr,
        )


def _settings(options: argparse.Namespace) -> Settings:
    names = [field.name for field in fields(Settings)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return Settings.from_mapping(given)


def _tolerances(options: argparse.Namespace) -> list[float] | None:
    given: list[float] | None = options.tolerance
    if given is not None and not all(tolerance >= 0 for tolerance in given):
        raise InvalidInput(f"the tolerance must be at least 0, got {min(given):g}")
    return given


def _environment_arguments(options: argparse.Namespace) -> dict[str, Any] | None:
    """NAME=VALUE pairs; values are JSON (false, 3, [1, 2]) or Python (False, None), else text."""
    arguments: dict[str, Any] = {}
    for pair in options.env_arg:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--env-arg {pair!r} must look like NAME=VALUE")
        arguments[name] = value
        for read in (ast.literal_eval, json.loads):
            with contextlib.suppress(ValueError, SyntaxError):
                arguments[name] = read(value)
    return arguments or None


COMMANDS = {
    "doctor": run_doctor,
    "collect": run_collect,
    "status": run_status,
    "fit": run_fit,
    "margin": run_margin,
    "validate": run_validate,
    "compare": run_compare,
    "plot": run_plot,
    "export": run_export,
    **PAGE_COMMANDS,
    **OVERSIGHT_COMMANDS,
    **REPRODUCE_COMMANDS,
    "zoo": run_zoo,
    "demo": run_demo,
}


if __name__ == "__main__":
    sys.exit(main())
