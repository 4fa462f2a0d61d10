"""The command that follows an agent through its training: trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from safemargin.cli import options
from safemargin.cli.study import POLICY_HELP, Environment, SettingsOptions
from safemargin.core.files import written_whole
from safemargin.core.settings import (
    ActionChoice,  # noqa: F401 (the types of options are looked up in this module)
    Settings,
    TrialPlan,  # noqa: F401
)
from safemargin.errors import InvalidInput


@options.app.command(group=options.MARGINS)
@options.on_ctrl_c(options.KEPT)
def trace(
    environment: Environment,
    /,
    *checkpoints: Annotated[str, Parameter(name="CHECKPOINT", help=f"two or more: {POLICY_HELP}")],
    output: options.Output = Path("evolution.html"),
    studies: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    moments: Annotated[int | None, Parameter(metavar="M")] = None,
    seconds: Annotated[float | None, Parameter(metavar="S")] = None,
    tolerance: options.Numbers | None = None,
    call_at: Annotated[int | None, Parameter(metavar="N")] = None,
    workers: int | None = None,
    made_with: options.EnvironmentOptions = options.EnvironmentOptions(),
    perturb: Annotated[str, Parameter(metavar="P")] = Settings.perturb,
    signal: Annotated[str, Parameter(metavar="S")] = Settings.signal,
    settings: SettingsOptions = SettingsOptions(),
    as_json: options.Json = False,
) -> None:
    """Draw how criticality, margins and the proxy developed over the checkpoints of a training.

    Each checkpoint gets a cheap study on the same starts, whose folder is kept: run the command
    again with more checkpoints, and only these are measured. Files are ordered by the numbers in
    their names.

    For example:

        safemargin trace CartPole-v1 checkpoints/*.onnx -o evolution.html
        safemargin trace CartPole-v1 checkpoints/*.zip --seconds 600

    Args:
        output: the HTML file to write, with everything inside
        studies: the folder of the studies (default: named after the output, e.g. evolution/)
        moments: natural moments of each checkpoint (default: 40)
        seconds: measure as many moments as fit into this time, by the forecast of `collect --plan`
        tolerance: losses you accept, in reward units (default: some that tell moments apart)
        call_at: moments that afford fewer random actions than N count as critical (default: 2)
        workers: number of workers (default: one per core)
        perturb: the mistakes to measure, as `collect --perturb` names them
        signal: what is lost, as `collect --signal` names it
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.study.tracing import in_training_order
    from safemargin.study.tracing import trace as follow
    from safemargin.web.evolution import evolution_page

    options.note_new_parents(output)
    if output.is_dir():
        raise InvalidInput(f"{output} is a folder; name the file, e.g. evolution.html")
    with ProgressBar() as progress:
        found = follow(
            environment,
            [made_with.policy(each) for each in in_training_order(checkpoints)],
            studies or output.with_suffix(""),
            moments=moments,
            seconds=seconds,
            tolerances=tolerance,
            call_at=call_at,
            settings=Settings.from_mapping(settings.about(perturb, signal).given),
            workers=workers,
            env_arguments=made_with.arguments,
            scores=made_with.scores,
            progress=progress,
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(output) as file:
        file.write_text(evolution_page(found), encoding="utf-8")
    written = {"evolution": str(output), **found.to_dict()}
    options.print_written(written, [output], as_json=as_json)
