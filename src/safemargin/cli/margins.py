"""The commands of margins: fit, margin, validate, compare, plot, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from safemargin.cli.options import (
    MARGINS,
    OK,
    Confidence,
    Estimand,
    FitOptions,
    Json,
    Numbers,
    Output,
    StudyFolder,
    app,
    print_json,
    print_note,
    warn_if_unfinished,
)
from safemargin.errors import InvalidInput


@app.command(group=MARGINS)
def fit(
    study: StudyFolder,
    /,
    *,
    output: Output = Path("margins.json"),
    fit: FitOptions = FitOptions(),
    tolerance: Numbers | None = None,
    as_json: Json = False,
) -> int:
    """Fit safety margins to a study.

    For example:

        safemargin fit runs/pong -o margins.json --confidence 0.95 --tolerance 0.5,1

    Args:
        output: the file to write; an older one is replaced
        tolerance: the rows of the table that is printed, in reward units
    """
    from safemargin.cli.console import print_margins, warnings_as_notes
    from safemargin.study.study import Study

    if tolerance is not None and not all(each >= 0 for each in tolerance):
        raise InvalidInput(f"--tolerance must be at least 0, got {min(tolerance):g}")
    with Study.open(study) as opened, warnings_as_notes():
        margins = opened.fit(**vars(fit))
        warn_if_unfinished(opened)
        margins.save(output)
    for note in () if margins.bound.unbounded else margins.notes:
        print_note(note)
    if as_json:
        print_json({"margins": str(output), **margins.to_dict()})
    else:
        print_margins(margins, tolerance)
        print(f"\nwrote {output}")
    return OK


@app.command(group=MARGINS)
def margin(
    margins: Annotated[Path, Parameter(name="MARGINS", help="the file that `fit` wrote")],
    /,
    *,
    proxy: Annotated[Numbers, Parameter(metavar="P")],
    tolerance: float,
    above: Literal["zero", "nearest", "error"] = "zero",
    as_json: Json = False,
) -> int:
    """Look up one safety margin.

    For example:

        safemargin margin margins.json --proxy 3.2 --tolerance 0.5

    Args:
        proxy: the proxy's value now; if the proxy looks at n, one value for each n, with commas
        tolerance: the loss you accept, in reward units
        above: the answer above the highest measured proxy: margin 0, that of the highest, or an
            error
    """
    from safemargin.margins.lookup import Margins

    loaded = Margins.load(margins)
    if not loaded.bound.looks_at_n and len(proxy) > 1:
        raise InvalidInput(f"the proxy {loaded.proxy!r} has one value, got {proxy}")
    value = proxy if loaded.bound.looks_at_n else proxy[0]
    found = loaded.lookup(value, tolerance, above=above)
    if as_json:
        print_json(
            {
                "margin": found.margin,
                "outside": found.outside,
                "below": found.below,
                "proxy": value,
                "proxy_name": loaded.proxy,
                "tolerance": tolerance,
                "confidence": loaded.confidence,
                "method": loaded.method,
                "estimand": loaded.estimand,
            }
        )
        return OK
    print(found.margin)
    if found.outside:
        treated = "the last bin was used"
        if above == "zero":
            treated = "no margin is granted" + " from that n on" * loaded.bound.looks_at_n
        print_note(
            f"{loaded.proxy} {max(proxy):g} lies above {loaded.highest_proxy:g}, "
            f"the highest these margins were fitted on; {treated}"
        )
    return OK


@app.command(group=MARGINS)
def validate(
    study: StudyFolder,
    /,
    *,
    fit: FitOptions = FitOptions(),
    tolerance: Numbers | None = None,
    as_json: Json = False,
) -> int:
    """Check on held-out moments whether the margins hold.

    Args:
        tolerance: losses you accept, in reward units
    """
    from safemargin.cli.show_validation import print_validation
    from safemargin.study.study import Study

    _check_tolerances(tolerance)
    with Study.open(study) as opened:
        validation = opened.validate(**vars(fit), tolerances=tolerance)
        warn_if_unfinished(opened)
    if as_json:
        print_json(validation.to_dict())
    else:
        print_validation(validation)
    return OK


@app.command(group=MARGINS)
def compare(
    study: StudyFolder,
    /,
    *,
    confidence: Confidence = 0.95,
    proxy: Annotated[list[str] | None, Parameter(consume_multiple=1, metavar="NAME...")] = None,
    estimand: Estimand = "mean",
    tolerance: Numbers | None = None,
    as_json: Json = False,
) -> int:
    """Compare all methods and proxies of a study, and name the best.

    The comparison is a cross-validation on natural moments. The winner grants the largest mean
    margin among those that are not shown to break their promise.

    For example:

        safemargin compare runs/pong --tolerance 0.5

    Args:
        proxy: proxies to compare (default: all of the study)
        tolerance: losses you accept, in reward units
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.cli.show_validation import print_comparison
    from safemargin.study.study import Study

    _check_tolerances(tolerance)
    with Study.open(study) as opened, ProgressBar() as progress:
        comparison = opened.compare(
            confidence, tolerances=tolerance, proxies=proxy, estimand=estimand, progress=progress
        )
        warn_if_unfinished(opened)
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_comparison(comparison)
    return OK


def _check_tolerances(tolerances: list[float] | None) -> None:
    if tolerances is not None and not all(tolerance >= 0 for tolerance in tolerances):
        raise InvalidInput(f"the tolerance must be at least 0, got {min(tolerances):g}")


@app.command(group=MARGINS)
def plot(
    study: StudyFolder,
    /,
    *,
    output: Output = Path("figures"),
    format: Literal["png", "svg", "pdf"] = "png",
    fit: FitOptions = FitOptions(),
    as_json: Json = False,
) -> int:
    """Draw densities, margins and proxies of a study.

    Args:
        output: the folder to write to
        format: the format of the pictures
    """
    from safemargin.cli.console import warnings_as_notes
    from safemargin.study.study import Study

    with Study.open(study) as opened, warnings_as_notes():
        written = opened.plot(output, **vars(fit), picture_format=format)
        warn_if_unfinished(opened)
    if as_json:
        print_json({"figures": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
    return OK


@app.command(group=MARGINS)
def export(
    study: StudyFolder,
    /,
    *,
    output: Output,
    steps: bool = False,
    episodes: Annotated[int | None, Parameter(metavar="K")] = None,
    as_json: Json = False,
) -> int:
    """Write a study's tuples, or the steps of its episodes, as a table.

    The view `tuples` of STUDY/study.db holds the table of tuples, too:

        sqlite3 STUDY/study.db 'SELECT * FROM tuples LIMIT 5'

    For example:

        safemargin export runs/pong -o tuples.parquet
        safemargin export runs/pong --steps -o steps.csv

    Args:
        output: the file to write, .csv or .parquet
        steps: write reward and proxies at every step of the natural episodes instead of the tuples
        episodes: with --steps: only the first K natural episodes (each life of a game is one)
    """
    from safemargin.study.study import Study

    with Study.open(study) as opened:
        written = opened.export(output, steps=steps, episodes=episodes)
    if as_json:
        print_json({"table": str(written)})
    else:
        print(written)
    return OK
