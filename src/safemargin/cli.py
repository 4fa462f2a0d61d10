"""The command line: one verb for each thing a study can do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import safemargin
from safemargin.errors import InvalidInput, NotMeasurable, SafemarginError
from safemargin.settings import ActionChoice, Settings

OK, FINDING, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

ENVIRONMENT_HELP = (
    "a Gymnasium id (CartPole-v1), atari:GAME (the paper's preprocessing), "
    "or file.py:function / package.module:function that returns an environment"
)
POLICY_HELP = (
    "an .onnx file, a Stable-Baselines3 .zip, zoo:NAME (a bundled agent), "
    "or file.py:name / package.module:name of a policy, a PyTorch module or a function"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    options = build_parser().parse_args(arguments)
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


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be whole numbers with commas, like 1,2,4,8"
        ) from None


# -- the parser --------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(
        prog="safemargin",
        description="How many mistakes can a reinforcement-learning agent afford right now?",
        epilog="""a study from end to end:
  safemargin doctor   CartPole-v1 --policy agent.onnx
  safemargin collect  CartPole-v1 agent.onnx -o runs/cartpole
  safemargin fit      runs/cartpole -o margins.json
  safemargin margin   margins.json --proxy 3.2 --tolerance 0.5
  safemargin validate runs/cartpole
  safemargin plot     runs/cartpole -o figures/

exit status: 0 all well; 1 a finding (the environment cannot be measured); 2 bad usage or input""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=safemargin.__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, epilog: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        added.add_argument(
            "--json", action="store_true", help="one JSON document on standard output"
        )
        return added

    doctor = command(
        "doctor",
        run_doctor,
        "find out whether an environment can be measured, how, and if not, why",
        "example:\n  safemargin doctor atari:pong --policy agent.onnx --opening 30\n"
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
        "--spread to extend a study. The result does not depend on --workers.\n\n"
        "examples:\n  safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole "
        "--natural 100 --spread 100 --sampling-error 2\n"
        "  safemargin collect atari:pong agent.onnx -o runs/pong --opening 30",
    )
    collect.add_argument("environment", metavar="ENV", help=ENVIRONMENT_HELP)
    collect.add_argument("policy", metavar="POLICY", help=POLICY_HELP)
    collect.add_argument(
        "-o", "--output", type=Path, required=True, metavar="STUDY", help="the study's folder"
    )
    collect.add_argument(
        "--natural", type=int, default=500, help="moments drawn evenly from episodes (default 500)"
    )
    collect.add_argument(
        "--spread", type=int, default=500, help="moments spread over proxy values (default 500)"
    )
    collect.add_argument("--workers", type=int, help="processes (default: one on each core)")
    _add_environment_options(collect)
    collect.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="FILE.PY:NAME",
        help="record a proxy of your own besides the built-in ones",
    )
    _add_settings(collect)

    status = command(
        "status", run_status, "show what is in a study, what is left, and the time left", ""
    )
    fit = command(
        "fit",
        run_fit,
        "fit safety margins to a study",
        "example:\n  safemargin fit runs/pong -o margins.json --confidence 0.95 --tolerance 0.5 1",
    )
    validate = command(
        "validate", run_validate, "check on held-out moments whether the margins hold", ""
    )
    plot = command("plot", run_plot, "draw densities, margins and proxies of a study", "")
    export = command(
        "export",
        run_export,
        "write a study's tuples as a table",
        "The same table is the view `tuples` of STUDY/study.db:\n"
        "  sqlite3 STUDY/study.db 'SELECT * FROM tuples LIMIT 5'",
    )
    for parser_of_study in (status, fit, validate, plot, export):
        parser_of_study.add_argument("study", type=Path, metavar="STUDY", help="a study's folder")
    for parser_of_fit in (fit, validate, plot):
        parser_of_fit.add_argument(
            "--confidence", type=float, default=0.95, help="β (default 0.95)"
        )
        parser_of_fit.add_argument("--method", default="paper", help="of the bound (default paper)")
        parser_of_fit.add_argument(
            "--proxy", metavar="NAME", help="default: the one the moments were spread by"
        )
    fit.add_argument("-o", "--output", type=Path, default=Path("margins.json"), help="the file")
    fit.add_argument(
        "--tolerance", type=float, nargs="+", help="rows of the table shown (reward units)"
    )
    plot.add_argument(
        "-o", "--output", type=Path, default=Path("figures"), help="the folder (default figures)"
    )
    plot.add_argument("--format", choices=["png", "svg", "pdf"], default="png")
    export.add_argument(
        "-o", "--output", type=Path, required=True, help="the file, .csv or .parquet"
    )

    margin = command(
        "margin",
        run_margin,
        "look up one safety margin",
        "example:\n  safemargin margin margins.json --proxy 3.2 --tolerance 0.5",
    )
    margin.add_argument("margins", type=Path, metavar="MARGINS", help="what `fit` wrote")
    margin.add_argument("--proxy", type=float, required=True, help="the proxy's value now")
    margin.add_argument(
        "--tolerance", type=float, required=True, help="the loss you accept, in reward units"
    )
    margin.add_argument(
        "--above",
        choices=["zero", "nearest", "error"],
        default="zero",
        help="what to do above the highest measured proxy (default: margin 0)",
    )

    demo = command(
        "demo", run_demo, "a small study of a bundled agent, from episodes to pictures", ""
    )
    demo.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/demo"),
        help="the folder (default runs/demo)",
    )
    demo.add_argument("--workers", type=int, help="processes (default: one on each core)")
    return parser


def _add_environment_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the environment, e.g. is_slippery=false; may be repeated",
    )
    parser.add_argument(
        "--scores",
        choices=["q", "logits", "gaussian", "actions"],
        help="what the policy's scores mean, where the policy itself does not say",
    )


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
        type=_whole_numbers,
        metavar="N,N,…",
        help="S: how many actions are random (default 1,2,4,8,16,32)",
    )
    add("horizon_error", float, "relative error accepted for the finite horizon")
    add("sampling_error", float, "half-width at which trials stop, in reward units")
    add("sampling_confidence", float, "confidence α of that half-width")
    add("min_trials", int, "trials of a moment and n, at least")
    add("max_trials", int, "trials of a moment and n, at most")
    add("action_choice", str, "how the policy acts", choices=get_args(ActionChoice))
    add("epsilon", float, "chance of a random action under epsilon-greedy")
    add("opening", int, "begin episodes with up to this many random actions")
    add("exclude_last", int, "never choose the last so many steps (default: the largest n)")
    add("max_episode_steps", int, "cut episodes that do not end by themselves")
    add("selection_proxy", str, "the proxy that spreads the spread moments")
    add("seed", int, "of everything random")


if __name__ == "__main__":
    sys.exit(main())
