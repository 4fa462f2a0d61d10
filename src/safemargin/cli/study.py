"""The commands that measure and learn: doctor, collect, learn, status."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.cli.measures import MeasureOptions
from safemargin.core.settings import (
    ActionChoice,
    Settings,
    TrialPlan,  # noqa: F401 (the type of an option is looked up in this module)
)
from safemargin.errors import InvalidInput

if TYPE_CHECKING:
    from safemargin.study.learning import Learned

Environment = Annotated[
    str,
    Parameter(
        name="ENV",
        help="a Gymnasium id (CartPole-v1), atari:GAME (the paper's preprocessing), rl-zoo:FOLDER "
        "(a training run of rl-zoo3, which brings its policy along), or "
        "file.py:function / package.module:function that returns an environment",
    ),
]
POLICY_HELP = (
    "an .onnx file, a Stable-Baselines3 .zip, zoo:NAME (a bundled agent), rllib:CHECKPOINT, "
    "sbx:FILE, cleanrl:FILE or tianshou:FILE, or "
    "file.py:name / package.module:name of a policy, a PyTorch module or a function"
)


@options.app.command(group=options.MEASURE)
def doctor(
    environment: Environment,
    /,
    *,
    policy: Annotated[str | None, Parameter(metavar="POLICY", help=POLICY_HELP)] = None,
    made_with: options.EnvironmentOptions = options.EnvironmentOptions(),
    seed: int = 0,
    opening: Annotated[int, Parameter(metavar="K")] = 0,
    action_choice: ActionChoice | None = None,
    way: Literal["snapshot", "replay"] | None = None,
    as_json: options.Json = False,
) -> int:
    """Check whether and how an environment can be measured, or why it cannot.

    For example:

        safemargin doctor atari:pong --policy agent.onnx --opening 400

    Exit status 1: the environment cannot be measured.

    Args:
        seed: random seed of the experiments
        opening: start episodes with up to K random actions
        action_choice: how the policy acts (default: greedy; an rl-zoo folder's as rl-zoo shows it)
        way: the only way back to a moment to try (default: snapshot, and replay if that fails)
    """
    from safemargin.cli.console import note_choice, say_how_it_plays
    from safemargin.environments import EnvironmentSpec
    from safemargin.environments.doctor.returns import settings_for
    from safemargin.environments.functional.naming import suited_to

    acts = {} if action_choice is None else {"action_choice": action_choice}
    spec = EnvironmentSpec.parse(environment, made_with.arguments)
    loaded, named = None, made_with.policy(policy) or spec.own_policy
    if named is not None:
        say_how_it_plays(environment, policy)
        spec, named = spec.with_team(named)
        loaded = suited_to(spec, sm.load_policy(named, kind=made_with.scores))
    settings = settings_for(loaded, {"opening": opening} | acts)
    note_choice(settings, environment, action_choice)
    note = None if as_json else lambda text: print(text, file=sys.stderr)
    diagnosis = sm.examine(spec.make, loaded, settings, seed=seed, way=way, progress=note)
    if as_json:
        options.print_json(diagnosis.to_dict())
    else:
        marks = {"ok": "  ok      ", "note": "  note    ", "problem": "  PROBLEM "}
        for finding in diagnosis.findings:
            print(marks[finding.level] + finding.text)
        print(diagnosis.verdict)
    return options.OK if diagnosis.measurable else options.FINDING


@Parameter(name="*", group=options.group("Workers"))
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where the episodes and trials run."""

    workers: int | None = None
    """number of workers (default: one per core)"""
    engine: Literal["local", "processes", "ray", "jax"] | None = None
    """where they run: in this process, in processes of this machine (default, unless there is one
    worker), on Ray, which is started here and stopped again unless --address is given, or on an
    accelerator (default for environments and policies in JAX)"""
    address: Annotated[str | None, Parameter(metavar="HOST:PORT")] = None
    """with --engine ray: the cluster to join, or auto"""
    gpus_per_worker: Annotated[float, Parameter(metavar="G")] = 0.0
    """with --engine ray: GPUs reserved for each worker's policy, e.g. 0.25"""
    device: Literal["cpu", "gpu"] | None = None
    """with --engine jax: what to run on (default: the best there is)"""


@Parameter(name="*", group=options.group("What will it cost?"))
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """A forecast instead of a collection."""

    plan: bool = False
    """collect nothing: measure a few moments, discard them, and forecast what this command would
    cost without --plan (or what is left of it, if STUDY exists): trials, simulator steps and time
    for each n, with ranges, disk space, and what would be cheaper"""
    plan_moments: Annotated[int | None, Parameter(metavar="M")] = None
    """measure this many, at least two of each phase (default: 12, or one for each worker); more
    give narrower ranges"""
    plan_seconds: Annotated[float, Parameter(metavar="S")] = 60.0
    """start no further moment after S seconds; Ctrl-C ends it sooner, with a plan from the moments
    measured by then"""


_LEFT_OPEN = ("action_choice", None)


@Parameter(name="*", group=options.group("What is measured (fixed once a study exists)"))
@dataclass(frozen=True, kw_only=True)
class SettingsOptions(Settings):
    """One option for each field of Settings."""

    n_values: Annotated[options.WholeNumbers, Parameter(name="--n")] = Settings.n_values
    perturb: Annotated[str, Parameter(parse=False)] = Settings.perturb
    signal: Annotated[str, Parameter(parse=False)] = Settings.signal
    action_choice: ActionChoice | None = None  # type: ignore[assignment]
    """How the policy under test turns scores into actions (default: greedy; an rl-zoo folder's as
    rl-zoo shows it)."""
    seed: int = Settings.seed
    """Random seed for the whole study."""

    def __post_init__(self) -> None:
        try:
            checked = Settings.from_mapping(self.given)
        except InvalidInput as error:
            raise InvalidInput(_named_as_options(str(error))) from None
        object.__setattr__(self, "n_values", checked.n_values)

    def about(self, perturb: str, signal: str) -> SettingsOptions:
        """Return the same about other mistakes or another loss."""
        return replace(self, perturb=perturb, signal=signal)

    @property
    def given(self) -> dict[str, Any]:
        """The settings by name; without action_choice if that is left to the policy."""
        values = {each.name: getattr(self, each.name) for each in fields(Settings)}
        return {name: value for name, value in values.items() if (name, value) != _LEFT_OPEN}


_ALSO_WORDS = ("trials", "opening", "seed")
"""Names of settings that are words of a sentence, too."""


def _named_as_options(text: str) -> str:
    """Name the settings in a sentence as they are typed: n_values is --n."""
    text = text.removeprefix("settings: ")
    for each in fields(Settings):
        option = "--n" if each.name == "n_values" else "--" + each.name.replace("_", "-")
        before = r"(^|\bset )" if each.name in _ALSO_WORDS else r"(^|(?<=[ (]))"
        text = re.sub(rf"{before}{each.name}='([\w-]+)'", rf"\g<1>{option} \g<2>", text)
        text = re.sub(rf"{before}{each.name}(?![\w-])", rf"\g<1>{option}", text)
    return text


@options.app.command(group=options.MEASURE)
@options.on_ctrl_c(options.KEPT)
def collect(
    environment: Environment,
    policy: Annotated[str | None, Parameter(name="POLICY", help=POLICY_HELP)] = None,
    /,
    *,
    output: Annotated[options.Output, Parameter(metavar="STUDY")],
    natural: int = 500,
    spread: int = 500,
    proxy: Annotated[tuple[str, ...], Parameter(metavar="FILE.PY:NAME")] = (),
    way: Literal["snapshot", "replay"] | None = None,
    made_with: options.EnvironmentOptions = options.EnvironmentOptions(),
    engine: EngineOptions = EngineOptions(),
    plan: PlanOptions = PlanOptions(),
    settings: SettingsOptions = SettingsOptions(),
    measure: MeasureOptions = MeasureOptions(),
    as_json: options.Json = False,
) -> int:
    """Run episodes, choose moments and measure their criticality (Algorithm 2).

    Run the same command again to continue after an interruption, or with larger --natural and
    --spread to extend a study. The result does not depend on --workers or --engine.

    A margin of confidence 0.95 takes at least 19 natural moments, and 95 (better 475) to be
    calibrated in each of five parts of the proxy's range; 0.99 takes 99 and 495 (2,475), 0.999
    takes 999 and 4,995 (24,975).

    For example:

        safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole --natural 100
        safemargin collect CartPole-v1 zoo:cartpole -o runs/cartpole --plan
        safemargin collect atari:pong agent.onnx -o runs/pong --opening 400
        safemargin collect my.py:make a.onnx -o runs/x --perturb random,stuck --signal reward,cost

    Args:
        output: the study's folder
        natural: moments drawn evenly from episodes; margins of a confidence of 0.95 need at least
            19 of them, of 0.99 99, of 0.999 999, and are sharper with 25 times as many
        spread: moments spread over proxy values
        proxy: record a proxy of your own besides the built-in ones; may be repeated
        way: the only way back to a moment (default: snapshot, and replay as soon as that fails);
            fixed once a study exists
    """
    from safemargin.cli.console import ProgressBar, note_choice, say_how_it_plays
    from safemargin.cli.show_status import show_status
    from safemargin.engines import check_engine
    from safemargin.study.collection import check_collect
    from safemargin.study.creation import nothing_left_if_refused

    if output == Path():
        raise InvalidInput("-o needs the name of a folder for the study")
    if not plan.plan and plan != PlanOptions():
        raise InvalidInput("--plan-moments and --plan-seconds need --plan")
    check_collect(natural, spread, engine.workers)
    check_engine(**vars(engine))
    pairs = measure.pairs(output)
    about = [settings.about(*pair) for pair in pairs]  # refused before anything is made
    what: dict[str, Any] = {
        "settings": about[0].given,
        "env_arguments": made_with.arguments,
        "scores": made_with.scores,
        "proxies": proxy,
        "way": way,
    }
    size: dict[str, Any] = {"natural": natural, "spread": spread, **vars(engine)}
    policy = made_with.policy(policy)
    say_how_it_plays(environment, policy)
    if plan.plan:
        return _plan(plan, pairs, output, environment, policy, as_json=as_json, **what, **size)
    options.note_new_parents(output)
    with nothing_left_if_refused(output), contextlib.ExitStack() as opened:
        with ProgressBar() as progress:
            made = sm.Study.create(output, environment, policy, **what, progress=progress)
            study = opened.enter_context(made)
            note_choice(study.settings, environment, settings.action_choice)
            study.collect(**size, more=pairs[1:], progress=progress)
        show_status(study, as_json=as_json)
    return options.OK


def _plan(plan: PlanOptions, pairs: list[Any], *where: Any, as_json: bool, **size: Any) -> int:
    """Print what the same command without --plan would cost."""
    from safemargin.cli.console import ProgressBar
    from safemargin.cli.show_plan import print_any_plan
    from safemargin.study.planning_several import plan_several

    size |= {"moments": plan.plan_moments, "seconds": plan.plan_seconds}
    with (
        options.on_ctrl_c("stopped before a moment was measured, so there is no plan"),
        ProgressBar() as progress,
    ):
        size["progress"] = progress
        several = len(pairs) > 1
        found = plan_several(pairs, *where, **size) if several else sm.plan_study(*where, **size)
    options.print_answer(found, print_any_plan, as_json=as_json)
    return options.INTERRUPTED if found.interrupted else options.OK


@options.app.command(group=options.MEASURE)
@options.on_ctrl_c(options.KEPT)
def learn(
    study: options.StudyFolder,
    /,
    *,
    target: Literal["losses", "regret", "stakes", "return", "mask"] = "losses",
    output: options.Output | None = None,
    labels: int = 0,
    tolerance: float | None = None,
    promise: options.Promise = "bound",
    confidence: options.Confidence = 0.95,
    no_traces: bool = False,
    engine: EngineOptions = EngineOptions(),
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Learn a proxy from a study's own measurements; afterwards it is called `learned`.

    A small model learns from the policy's last hidden layer, its scores and a short history of
    both how much random actions cost. Every moment of the study gets its value from models that
    have not seen it or the play around it, so that bounds and validation stay honest. The proxy is
    stored only if it grants more than the others do. Use it with `fit --proxy learned`.

    For example:

        safemargin learn runs/pong
        safemargin learn runs/beamrider --labels 5000 --tolerance 0.5
        safemargin learn runs/pong --promise margin --tolerance 0.5
        safemargin learn runs/pong --target regret -o regret.json

    Args:
        target: losses: what random actions cost, for margins; regret: where the agent itself is
            wrong, and stakes: where it matters which action is taken, for a ranking of decisions
            called `learned-regret` or `learned-stakes` (`simulate-oversight --by regret`); return:
            which steps matter for the return of an episode, recorded as `learned-return`,
            and mask: which steps cannot be left to chance, `learned-mask` (`fidelity` tests both)
        output: with --target regret or stakes: also write the ranking into this JSON file
        labels: first collect cheap labels until there are this many: natural moments of other
            games with a few trials each, for training only
        tolerance: the loss at which models of losses are compared (default: three that tell
            moments apart)
        promise: compare models by the margins that this promise grants; name the one you will fit
        no_traces: do not replay all episodes to record the proxy along them; fit, validate and
            compare need only the moments, but report, explorer and simulations need the episodes,
            and margins fitted without them know no proxy of an episode's last steps, so that a
            monitor may take these for drift
    """
    from safemargin.cli.console import ProgressBar, study_to_judge
    from safemargin.cli.show_ranking import print_ranking
    from safemargin.study.learning_rankings import ranking_of

    if target in ("return", "mask"):
        _learn_explanation(study, target, output, about, as_json=as_json)
        return
    if output is not None and target == "losses":
        raise InvalidInput(
            "-o writes a ranking of decisions, with --target regret or stakes; a learned proxy "
            "travels in the margins that `fit --proxy learned -o FILE` writes"
        )
    with study_to_judge(study, about) as opened, ProgressBar() as progress:
        found = opened.learn(
            target=target,
            labels=labels,
            tolerance=tolerance,
            promise=promise,
            confidence=confidence,
            traces=not no_traces,
            **vars(engine),
            progress=progress,
        )
        if output is not None and found.recipe is not None:
            ranking_of(opened.store, target).save(output)
    show: Any = _print_learned if target == "losses" else print_ranking
    options.print_answer(found, show, as_json=as_json)
    if output is not None and not as_json:
        print(f"wrote {output}" if found.recipe is not None else f"{output} was not written")


def _learn_explanation(
    study: Path, target: str, output: Path | None, about: options.About, *, as_json: bool
) -> None:
    from safemargin.cli.console import ProgressBar
    from safemargin.monitor.mask import learn_mask
    from safemargin.study.return_model import learn_return

    if output is not None:
        raise InvalidInput("-o writes a ranking of decisions, with --target regret or stakes")
    with sm.Study.open(study, **vars(about)) as opened, ProgressBar() as progress:
        found: Any
        if target == "return":
            found = learn_return(opened.store, progress)
        else:
            found = learn_mask(opened, progress=progress)
    options.print_answer(found, print, as_json=as_json)


def _print_learned(found: Learned) -> None:
    lessons = f"{found.moments:,} moments" + f" and {found.labels:,} labels" * (found.labels > 0)
    print(f"learned from {lessons}: {found.recipe or 'no better proxy'}")
    print(found)
    print("mean share of what perfect knowledge grants, on moments not seen:")
    for name, share in sorted(found.shares.items(), key=lambda item: -item[1]):
        print(f"  {share:5.0%}  {name}")


@options.app.command(group=options.MEASURE)
def status(
    study: options.StudyFolder,
    /,
    *,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Show what is in a study, what is left to measure, and how long it will take."""
    from safemargin.cli.show_status import show_status

    with sm.Study.open(study, **vars(about)) as opened:
        show_status(opened, as_json=as_json)
