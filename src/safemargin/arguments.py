"""The words of the command line: every command with its options and its help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import safemargin
from safemargin.commands import numbers, whole_numbers
from safemargin.oversight_commands import add_oversight_commands
from safemargin.page_commands import add_page_commands
from safemargin.reproduce_commands import add_reproduce_commands
from safemargin.settings import ActionChoice, Settings, TrialPlan

ENVIRONMENT_HELP = (
    "a Gymnasium id (CartPole-v1), atari:GAME (the paper's preprocessing), "
    "or file.py:function / package.module:function that returns an environment"
)
POLICY_HELP = (
    "an .onnx file, a Stable-Baselines3 .zip, zoo:NAME (a bundled agent), "
    "or file.py:name / package.module:name of a policy, a PyTorch module or a function"
)

Run = Callable[[argparse.Namespace], int]


def build_parser(run: Mapping[str, Run]) -> argparse.ArgumentParser:
    """All commands with their options; `run` holds what each of them does."""
    parser = argparse.ArgumentParser(
        prog="safemargin",
        description="How many mistakes can a reinforcement-learning agent afford right now?",
        epilog="""a study from end to end:
  safemargin doctor   CartPole-v1 --policy agent.onnx
  safemargin collect  CartPole-v1 agent.onnx -o runs/cartpole
  safemargin fit      runs/cartpole -o margins.json
  safemargin margin   margins.json --proxy 3.2 --tolerance 0.5
  safemargin validate runs/cartpole
  safemargin compare  runs/cartpole --tolerance 0.5
  safemargin plot     runs/cartpole -o figures/
  safemargin report   runs/cartpole -o report.html
  safemargin explore  runs/cartpole
  safemargin simulate-oversight runs/cartpole --budget 0.05

exit status: 0 all well; 1 a finding (the environment cannot be measured); 2 bad usage or input""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=safemargin.__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run[name])
        added.add_argument(
            "--json", action="store_true", help="one JSON document on standard output"
        )
        return added

    doctor = command(
        "doctor",
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
        "run episodes, choose moments and measure their criticality (Algorithm 2)",
        "Run the same command again to go on after an interruption, or with larger --natural and\n"
        "--spread to extend a study. The result does not depend on --workers or --engine.\n\n"
        "A margin of confidence 0.95 takes 19 natural moments at least, and 95 (better 475) to be\n"
        "calibrated in each of five parts of the proxy's range; 0.99 takes 99 and 495 (2,475),\n"
        "0.999 takes 999 and 4,995 (24,975).\n\n"
        "examples:\n  safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole "
        "--natural 100 --spread 100\n"
        "  safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole --plan  # the cost first\n"
        "  safemargin collect atari:pong agent.onnx -o runs/pong --opening 30",
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

    status = command("status", "show what is in a study, what is left, and the time left", "")
    fit = command(
        "fit",
        "fit safety margins to a study",
        "example:\n  safemargin fit runs/pong -o margins.json --confidence 0.95 --tolerance 0.5,1",
    )
    validate = command("validate", "check on held-out moments whether the margins hold", "")
    plot = command("plot", "draw densities, margins and proxies of a study", "")
    export = command(
        "export",
        "write a study's tuples, or the steps of its episodes, as a table",
        "The table of tuples is the view `tuples` of STUDY/study.db, too:\n"
        "  sqlite3 STUDY/study.db 'SELECT * FROM tuples LIMIT 5'\n\n"
        "examples:\n  safemargin export runs/pong -o tuples.parquet\n"
        "  safemargin export runs/pong --steps -o steps.csv",
    )
    compare = command(
        "compare",
        "compare all methods and proxies of a study, and name the best",
        "Cross-validation on natural moments; the winner grants the largest mean margin among\n"
        "those that are not shown to break their promise.\n\n"
        "example:\n  safemargin compare runs/pong --tolerance 0.5",
    )
    for parser_of_study in (status, fit, validate, plot, export, compare):
        parser_of_study.add_argument("study", type=Path, metavar="STUDY", help="a study's folder")
    for parser_of_fit in (fit, validate, plot):
        parser_of_fit.add_argument(
            "--confidence", type=float, default=0.95, help="β (default 0.95)"
        )
        parser_of_fit.add_argument(
            "--method",
            default="calibrated",
            help="of the bound: calibrated (default), isotonic, boosted, tolerance or paper",
        )
        parser_of_fit.add_argument(
            "--proxy", metavar="NAME", help="default: the one the moments were spread by"
        )
    compare.add_argument("--confidence", type=float, default=0.95, help="β (default 0.95)")
    compare.add_argument("--proxy", nargs="+", metavar="NAME", help="default: all of the study")
    for parser_of_loss in (fit, validate, plot, compare):
        parser_of_loss.add_argument(
            "--estimand",
            choices=["mean", "single-run"],
            default="mean",
            help="whose loss: the mean one at a moment (default), or that of a single run",
        )
    for parser_of_tolerances in (validate, compare):
        parser_of_tolerances.add_argument(
            "--tolerance", type=numbers, metavar="Z,Z,…", help="losses you accept, in reward units"
        )
    fit.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("margins.json"),
        help="the file (default margins.json; an older one is replaced)",
    )
    fit.add_argument(
        "--tolerance", type=numbers, metavar="Z,Z,…", help="rows of the table (reward units)"
    )
    plot.add_argument(
        "-o", "--output", type=Path, default=Path("figures"), help="the folder (default figures)"
    )
    plot.add_argument("--format", choices=["png", "svg", "pdf"], default="png")
    export.add_argument(
        "-o", "--output", type=Path, required=True, help="the file, .csv or .parquet"
    )
    export.add_argument(
        "--steps",
        action="store_true",
        help="reward and proxies at every step of the natural episodes, instead of the tuples",
    )
    export.add_argument(
        "--episodes", type=int, metavar="K", help="with --steps: of the first K episodes only"
    )

    margin = command(
        "margin",
        "look up one safety margin",
        "example:\n  safemargin margin margins.json --proxy 3.2 --tolerance 0.5",
    )
    margin.add_argument("margins", type=Path, metavar="MARGINS", help="what `fit` wrote")
    # Numbers such as -8e-05 are values, not options; argparse of older Pythons does not know.
    margin._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?(,.*)?$")
    margin.add_argument(
        "--proxy",
        type=numbers,
        required=True,
        metavar="P",
        help="the proxy's value now; with commas, one for each n, where the proxy looks at n",
    )
    margin.add_argument(
        "--tolerance", type=float, required=True, help="the loss you accept, in reward units"
    )
    margin.add_argument(
        "--above",
        choices=["zero", "nearest", "error"],
        default="zero",
        help="what to do above the highest measured proxy (default: margin 0)",
    )

    add_page_commands(command)
    add_oversight_commands(command)
    add_reproduce_commands(command)

    zoo = command(
        "zoo",
        "list the bundled agents, or show one",
        "examples:\n  safemargin zoo\n  safemargin zoo show pong-a3c",
    )
    zoo.set_defaults(agent=None)
    show = zoo.add_subparsers(metavar="[show NAME]").add_parser(
        "show", help="print an agent's card", description="Print an agent's card."
    )
    show.add_argument("agent", metavar="NAME", help="of the agent, as `safemargin zoo` lists it")
    show.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # else it would undo `zoo --json show`
        help="one JSON document on standard output",
    )

    demo = command("demo", "a small study of a bundled agent, from episodes to pictures", "")
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
