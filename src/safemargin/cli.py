"""The command line: one verb for each thing a study can do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from safemargin.arguments import build_parser
from safemargin.errors import InvalidInput, NotMeasurable, SafemarginError
from safemargin.settings import Settings

OK, FINDING, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    options = build_parser(COMMANDS).parse_args(arguments)
    try:
        status: int = options.run(options)
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
    return status


def _fail(error: SafemarginError, options: argparse.Namespace) -> int:
    status = FINDING if isinstance(error, NotMeasurable) else BAD_INPUT
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
        _print_json(diagnosis.to_dict())
    else:
        marks = {"ok": "  ok      ", "note": "  note    ", "problem": "  PROBLEM "}
        for finding in diagnosis.findings:
            print(marks[finding.level] + finding.text)
        print(diagnosis.verdict)
    return OK if diagnosis.measurable else FINDING


# -- collect -----------------------------------------------------------------------------------


def run_collect(options: argparse.Namespace) -> int:
    from safemargin.console import ProgressBar
    from safemargin.study import Study

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
        study.collect(options.natural, options.spread, workers=options.workers, progress=progress)
    with study:
        return _show_status(study, options)


# -- status ------------------------------------------------------------------------------------


def run_status(options: argparse.Namespace) -> int:
    from safemargin.study import Study

    with Study.open(options.study) as study:
        return _show_status(study, options)


def _show_status(study: Any, options: argparse.Namespace) -> int:
    from safemargin.console import duration

    status = study.status()
    if options.json:
        _print_json(
            {
                "study": str(study.path),
                "environment": study.environment,
                "policy": study.policy,
                "settings": json.loads(study.settings.to_json()),
                "proxies": study.proxies,
                "default_proxy": study.default_proxy,
                "diagnosis": study.diagnosis,
                **status.to_dict(),
            }
        )
        return OK
    print(f"study        {study.path}")
    print(f"environment  {study.environment['name']}")
    print(f"policy       {study.policy['description']} ({study.policy['kind']} scores)")
    print(
        f"episodes     {status.episodes}; {status.chosen_moments} moments chosen, "
        f"{status.distinct_moments} distinct, from {status.distinct_episodes} distinct episodes"
    )
    if status.distinct_episodes < 0.9 * status.chosen_moments:
        print("             the rest are copies: --opening K in a new study gives different starts")
    for phase, done in status.moments.items():
        print(f"{phase:<12} {done} of {status.wanted[phase]} moments measured for every n")
    print(f"trials       {status.trials:,} in {status.estimates:,} estimates")
    if status.capped:
        print(
            f"capped       {status.capped} estimates reached {study.settings.max_trials} trials "
            f"before ±{study.settings.sampling_error:g} was sure; raise --max-trials or "
            "--sampling-error in a new study"
        )
    print(
        f"cost         {status.simulator_steps:,} simulator steps, "
        f"{duration(status.worker_seconds)} of one worker"
    )
    if status.estimates_left:
        left = "unknown" if status.seconds_left is None else duration(status.seconds_left)
        print(f"left         {status.estimates_left:,} estimates, about {left}")
    else:
        print("left         nothing")
    return OK


# -- fit, margin -------------------------------------------------------------------------------


def run_fit(options: argparse.Namespace) -> int:
    from safemargin.console import print_margins
    from safemargin.study import Study

    with Study.open(options.study) as study:
        margins = study.fit(options.confidence, method=options.method, proxy=options.proxy)
        _warn_if_unfinished(study)
    margins.save(options.output)
    if options.json:
        _print_json({"margins": str(options.output), **margins.to_dict()})
    else:
        print_margins(margins, options.tolerance)
        print(f"\nwrote {options.output}")
    return OK


def run_margin(options: argparse.Namespace) -> int:
    from safemargin.margins import Margins

    margins = Margins.load(options.margins)
    found = margins.lookup(options.proxy, options.tolerance, above=options.above)
    if options.json:
        _print_json(
            {
                "margin": found.margin,
                "outside": found.outside,
                "below": found.below,
                "proxy": options.proxy,
                "proxy_name": margins.proxy,
                "tolerance": options.tolerance,
                "confidence": margins.confidence,
            }
        )
        return OK
    print(found.margin)
    if found.outside:
        treated = "no margin is granted" if options.above == "zero" else "the last bin was used"
        print(
            f"note: {margins.proxy} {options.proxy:g} lies above {margins.highest_proxy:g}, the "
            f"highest these margins were fitted on; {treated}",
            file=sys.stderr,
        )
    return OK


# -- validate ----------------------------------------------------------------------------------


def run_validate(options: argparse.Namespace) -> int:
    from safemargin.console import print_table
    from safemargin.study import Study

    with Study.open(options.study) as study:
        validation = study.validate(options.confidence, method=options.method, proxy=options.proxy)
        _warn_if_unfinished(study)
    if options.json:
        _print_json(validation.to_dict())
        return OK
    print_table(
        f"Held-out moments (fitted on {validation.train_moments}, tested on "
        f"{validation.test_moments}, promised {validation.confidence:g})",
        ["n", "held", "of", "success rate", "percentile error", "binomial noise"],
        [
            [
                str(row.n),
                str(row.succeeded),
                str(row.tested),
                f"{row.success_rate:.3f}",
                f"{row.percentile_error:+.3f}",
                f"±{row.standard_error:.3f}",
            ]
            for row in validation.coverage
        ],
    )
    print("A percentile error above 0 means that the bound was broken more often than promised;")
    print("one or two times the binomial noise means nothing.")
    print_table(
        "How much data stands behind one proxy value, and the percentile error it allows",
        ["kernel", "bandwidth", "spread moments", "sample size", "tight bound", "loose bound"],
        [
            [
                row.kernel if row.n is None else f"{row.kernel}, n = {row.n}",
                f"{row.bandwidth:.3g}",
                str(row.spread_moments),
                f"{row.sample_size:.2f}",
                f"{row.tight_bound:.3f}",
                f"{row.loose_bound:.3f}",
            ]
            for row in validation.sample_sizes
        ],
    )
    return OK


# -- plot, export ------------------------------------------------------------------------------


def run_plot(options: argparse.Namespace) -> int:
    from safemargin.study import Study

    with Study.open(options.study) as study:
        written = study.plot(
            options.output,
            confidence=options.confidence,
            method=options.method,
            proxy=options.proxy,
            picture_format=options.format,
        )
        _warn_if_unfinished(study)
    if options.json:
        _print_json({"figures": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
    return OK


def run_export(options: argparse.Namespace) -> int:
    from safemargin.study import Study

    with Study.open(options.study) as study:
        written = study.export(options.output)
    if options.json:
        _print_json({"table": str(written)})
    else:
        print(written)
    return OK


# -- demo --------------------------------------------------------------------------------------


def run_demo(options: argparse.Namespace) -> int:
    from safemargin.demo import run

    run(options.output, workers=options.workers, as_json=options.json)
    return OK


# -- what the commands share -------------------------------------------------------------------


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


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


def _environment_arguments(options: argparse.Namespace) -> dict[str, Any] | None:
    """NAME=VALUE pairs; values are read as JSON where they are JSON, else as text."""
    arguments: dict[str, Any] = {}
    for pair in options.env_arg:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--env-arg {pair!r} must look like NAME=VALUE")
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError:
            arguments[name] = value
    return arguments or None


COMMANDS = {
    "doctor": run_doctor,
    "collect": run_collect,
    "status": run_status,
    "fit": run_fit,
    "margin": run_margin,
    "validate": run_validate,
    "plot": run_plot,
    "export": run_export,
    "demo": run_demo,
}


if __name__ == "__main__":
    sys.exit(main())
