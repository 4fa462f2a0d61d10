"""The commands of margins: fit, margin, validate, compare, plot, export."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.errors import InvalidInput


@options.app.command(group=options.MARGINS)
def fit(
    study: options.StudyFolder,
    /,
    *,
    output: options.Output = Path("margins.json"),
    fit: options.FitOptions = options.FitOptions(),
    promise: options.Promise = "bound",
    tolerance: options.Numbers | None = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Fit safety margins to a study.

    For example:

        safemargin fit runs/pong -o margins.json --confidence 0.95 --tolerance 0.5,1
        safemargin fit runs/pong --proxy learned --promise margin --tolerance 0.5

    Args:
        output: the file to write; an older one is replaced
        tolerance: the losses you accept, in reward units: the rows of the table that is printed,
            and with --promise margin those that the promise is made for (between two of them, the
            margins of the lower one count; below all, none)
    """
    from safemargin.cli.console import print_margins, study_to_judge
    from safemargin.study.noise import describe_noise, measure_noise

    _check_tolerances(tolerance)
    with study_to_judge(study, about) as opened:
        margins = opened.fit(**vars(fit), **_promised(promise, tolerance))
        margins.save(output)
        # The loss of a single run is no mean of trials, so theirs is not in the bound.
        noisy = fit.estimand == "mean"
        noise = measure_noise(opened.store, opened.tuples(fit.proxy)) if noisy else None
        sentence = describe_noise(noise, opened.settings)
    for note in () if margins.bound.unbounded else margins.notes:
        options.print_note(note)
    if as_json:
        found = None if noise is None else asdict(noise)
        options.print_json({"margins": str(output), "noise": found, **margins.to_dict()})
    else:
        print_margins(margins, tolerance)
        if sentence is not None:
            print(sentence[1])
        print(f"\nwrote {output}")


@Parameter(name="*", group=options.group("Recorded episodes"))
@dataclass(frozen=True, kw_only=True)
class AlongOptions:
    """How margins are looked up along recorded episodes."""

    policy: Annotated[str | None, Parameter(metavar="POLICY")] = None
    """the agent that the margins are about, as `collect` names it"""
    normalize: Annotated[str | None, Parameter(metavar="FILE")] = None
    """its VecNormalize statistics, as for `collect`"""
    call_at: Annotated[int, Parameter(metavar="N")] = 1
    """count the decisions that afford fewer mistakes than N"""
    output: options.Output | None = None
    """write every decision with its proxy and margin into this .csv or .parquet"""


@options.app.command(group=options.MARGINS)
def margin(
    margins: Annotated[Path, Parameter(name="MARGINS", help="the file that `fit` wrote")],
    recorded: Annotated[
        str | None,
        Parameter(
            name="RECORDED",
            help="minari:DATASET, recorded episodes on this machine; instead of --proxy",
        ),
    ] = None,
    /,
    *,
    proxy: Annotated[options.Numbers | None, Parameter(metavar="P")] = None,
    tolerance: float,
    above: Literal["zero", "nearest", "error"] = "zero",
    along: AlongOptions = AlongOptions(),
    as_json: options.Json = False,
) -> int:
    """Look up one safety margin, or one at every step of recorded episodes.

    Recorded episodes need no simulator: the policy computes the proxy from their observations, and
    the proxies are watched for drift.

    For example:

        safemargin margin margins.json --proxy 3.2 --tolerance 0.5
        safemargin margin margins.json minari:robot/march-v0 --policy agent.onnx --tolerance 0.5

    Exit status 1: the recorded proxies have drifted, so the margins no longer hold.

    Args:
        proxy: the proxy's value now; if the proxy looks at n, one value for each n, with commas
        tolerance: the loss you accept, in reward units
        above: the answer above the highest measured proxy: margin 0, that of the highest, or an
            error
    """
    if recorded is not None:
        if proxy is not None or above != "zero":
            raise InvalidInput("--proxy and --above are for one margin, not for recorded episodes")
        return _along(margins, recorded, tolerance, along, as_json=as_json)
    if proxy is None or along != AlongOptions():
        raise InvalidInput(
            "name the proxy's value (--proxy 3.2), or recorded episodes (minari:DATASET) with "
            "--policy; --call-at and -o belong to the latter"
        )
    loaded = sm.Margins.load(margins)
    if not loaded.bound.looks_at_n and len(proxy) > 1:
        raise InvalidInput(f"the proxy {loaded.proxy!r} has one value, got {proxy}")
    value = proxy if loaded.bound.looks_at_n else proxy[0]
    found = loaded.lookup(value, tolerance, above=above)
    if as_json:
        asked: dict[str, Any] = {"proxy": value, "proxy_name": loaded.proxy, "tolerance": tolerance}
        asked |= {} if loaded.measured.usual else {"measured": loaded.measured.to_dict()}
        about = {name: getattr(loaded, name) for name in ("confidence", "method", "estimand")}
        options.print_json({**vars(found), **asked, **about})
        return options.OK
    print(found.margin)
    if not loaded.measured.usual:
        options.print_note(f"in these margins, {loaded.measured}")
    if found.outside:
        treated = "the last bin was used"
        if above == "zero":
            treated = "no margin is granted" + " from that n on" * loaded.bound.looks_at_n
        options.print_note(
            f"{loaded.proxy} {max(proxy):g} lies above {loaded.highest_proxy:g}, "
            f"the highest these margins were fitted on; {treated}"
        )
    return options.OK


def _along(
    margins: Path, recorded: str, tolerance: float, along: AlongOptions, *, as_json: bool
) -> int:
    """Look up margins at every step of recorded episodes."""
    from safemargin.cli.console import ProgressBar
    from safemargin.monitor.recorded import brief, margins_along
    from safemargin.policies.loading import normalized
    from safemargin.study.minari import SCHEME

    if not recorded.startswith(SCHEME):
        raise InvalidInput(f"recorded episodes are named minari:DATASET, got {recorded!r}")
    if along.policy is None:
        raise InvalidInput("recorded episodes need --policy, the agent whose margins these are")
    policy = normalized(along.policy, along.normalize)
    asked: dict[str, Any] = {"tolerance": tolerance, "call_at": along.call_at}
    with ProgressBar() as progress:
        found = margins_along(recorded, margins, policy, **asked, progress=progress)
    written = {} if along.output is None else {"table": str(found.save(along.output))}
    if as_json:
        options.print_json({**found.to_dict(), **written})
    else:
        for note in found.notes:
            options.print_note(note)
        print(*brief(found), *written.values(), sep="\n")
    return options.FINDING if found.drift.fired else options.OK


@options.app.command(group=options.MARGINS)
def validate(
    study: options.StudyFolder,
    /,
    *,
    fit: options.FitOptions = options.FitOptions(),
    promise: options.Promise = "bound",
    tolerance: options.Numbers | None = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Check on held-out moments whether the margins hold.

    Args:
        tolerance: losses you accept, in reward units
    """
    from safemargin.cli.console import study_to_judge
    from safemargin.cli.show_validation import print_validation

    _check_tolerances(tolerance)
    with study_to_judge(study, about) as opened:
        validation = opened.validate(**vars(fit), promise=promise, tolerances=tolerance)
    options.print_answer(validation, print_validation, as_json=as_json)


@options.app.command(group=options.MARGINS)
def compare(
    study: options.StudyFolder,
    /,
    *,
    confidence: options.Confidence = 0.95,
    proxy: Annotated[list[str] | None, Parameter(consume_multiple=1, metavar="NAME...")] = None,
    estimand: options.Estimand = "mean",
    tolerance: options.Numbers | None = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Compare all methods and proxies of a study, and name the best.

    The comparison is a cross-validation on natural moments. The winner grants the largest mean
    margin among those that are not shown to break their promise.

    For example:

        safemargin compare runs/pong --tolerance 0.5

    Args:
        proxy: proxies to compare (default: all of the study)
        tolerance: losses you accept, in reward units
    """
    from safemargin.cli.console import ProgressBar, study_to_judge
    from safemargin.cli.show_validation import print_comparison

    _check_tolerances(tolerance)
    with study_to_judge(study, about) as opened, ProgressBar() as progress:
        comparison = opened.compare(
            confidence, tolerances=tolerance, proxies=proxy, estimand=estimand, progress=progress
        )
    options.print_answer(comparison, print_comparison, as_json=as_json)


def _promised(promise: str, tolerances: list[float] | None) -> dict[str, Any]:
    """Return the options of a fit that keeps a promise."""
    return {"promise": promise} | ({"tolerances": tolerances or ()} if promise == "margin" else {})


def _check_tolerances(tolerances: list[float] | None) -> None:
    if tolerances is not None and not all(tolerance >= 0 for tolerance in tolerances):
        raise InvalidInput(f"--tolerance must be at least 0, got {min(tolerances):g}")


@options.app.command(group=options.MARGINS)
def plot(
    study: options.StudyFolder,
    /,
    *,
    output: options.Output = Path("figures"),
    format: Literal["png", "svg", "pdf"] = "png",
    fit: options.FitOptions = options.FitOptions(),
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Draw densities, margins and proxies of a study.

    Args:
        output: the folder to write to
        format: the format of the pictures
    """
    from safemargin.cli.console import study_to_judge

    options.note_new_parents(output)
    with study_to_judge(study, about) as opened:
        written = opened.plot(output, **vars(fit), picture_format=format)
    options.print_written({"figures": [str(path) for path in written]}, written, as_json=as_json)


@options.app.command(group=options.MARGINS)
def log(
    study: options.StudyFolder,
    /,
    *,
    tensorboard: Annotated[Path, Parameter(metavar="DIR")],
    step: int = 0,
    tolerance: options.Numbers | None = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Send a study's key numbers and pictures to TensorBoard.

    For any other tracker, give safemargin.study.tracking.log_study an object of your own with the
    methods add_scalar and add_image.

    For example:

        safemargin log runs/pong --tensorboard logs --step 200000 --tolerance 0.5

    Args:
        tensorboard: the folder that TensorBoard reads
        step: where the study stands on TensorBoard's axis, e.g. the checkpoint's training step
        tolerance: also log the mean margin of the natural moments at these tolerances
    """
    from safemargin.cli.console import print_table
    from safemargin.study.tracking import log_study
    from safemargin.study.tracking import tensorboard as writer

    with sm.Study.open(study, **vars(about)) as opened:
        tracker = writer(tensorboard)
        numbers = log_study(opened, tracker, step=step, tolerances=tolerance or ())
        tracker.close()
    if as_json:
        options.print_json(numbers)
    else:
        print_table("Logged", ["number", "value"], [[*pair] for pair in numbers.items()])


@options.app.command(group=options.MARGINS)
def export(
    study: options.StudyFolder,
    /,
    *,
    output: options.Output,
    steps: bool = False,
    episodes: Annotated[int | None, Parameter(metavar="K")] = None,
    trust: options.Trust = False,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Write a study's tuples, or the steps of its episodes, as a table or a Minari dataset.

    The view `tuples` of STUDY/study.db holds the table of tuples, too:

        sqlite3 STUDY/study.db 'SELECT * FROM tuples LIMIT 5'

    For example:

        safemargin export runs/pong -o tuples.parquet
        safemargin export runs/pong --steps -o steps.csv
        safemargin export runs/pong -o minari:pong/mine-v0

    Args:
        output: the file to write, .csv or .parquet; or minari:DATASET, a new dataset of the natural
            episodes, played again for their observations
        steps: write reward and proxies at every step of the natural episodes instead of the tuples
        episodes: with --steps or a dataset: only the first K natural episodes (each life of a game
            is one)
    """
    from safemargin.cli.console import ProgressBar

    with sm.Study.open(study, trust=trust, **vars(about)) as opened, ProgressBar() as progress:
        written = opened.export(output, steps=steps, episodes=episodes, progress=progress)
    what = "dataset" if written.is_dir() else "table"
    options.print_written({what: str(written)}, [written], as_json=as_json)
