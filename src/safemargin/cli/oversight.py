"""The command of oversight: what calling somebody would cost and catch."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from safemargin.cli.options import (
    FINDING,
    OK,
    OVERSEE,
    FitOptions,
    Json,
    Numbers,
    Output,
    StudyFolder,
    app,
    print_answer,
)


@app.command(group=OVERSEE)
def simulate_oversight(
    study: StudyFolder,
    /,
    *,
    budget: Annotated[float | None, Parameter(metavar="B")] = None,
    tolerance: Numbers | None = None,
    within: Annotated[int, Parameter(metavar="K")] = 8,
    rate: Annotated[float, Parameter(metavar="R")] = 15.0,
    agents: Annotated[int, Parameter(metavar="A")] = 1,
    fit: FitOptions = FitOptions(),
    output: Output | None = None,
    as_json: Json = False,
) -> int:
    """Show what calling below a margin would have cost in attention, and caught.

    Goes through the study's episodes as a monitor would have, with margins fitted without the
    episode at hand.

    For example:

        safemargin simulate-oversight runs/pong --budget 0.05
        safemargin simulate-oversight runs/pong --tolerance 0.5,1 -o calls.png

    Exit status 1: no threshold keeps within the budget.

    Args:
        budget: the share of decisions that people can look at, e.g. 0.05; the answer is call_at
        tolerance: losses you accept, in reward units (default: a few that make a difference)
        within: a call during the K decisions up to an event catches it
        rate: decisions per second of one agent
        agents: number of agents watched at once
        output: draw it as well, into a .png, .svg or .pdf file
    """
    from safemargin.cli.console import study_to_judge
    from safemargin.cli.show_attention import print_attention
    from safemargin.monitor.simulation import simulate_oversight

    with study_to_judge(study) as opened:
        attention = simulate_oversight(
            opened,
            budget=budget,
            tolerances=tolerance,
            within=within,
            rate=rate,
            agents=agents,
            **vars(fit),
        )
    if output is not None:
        from safemargin.monitor.attention_plot import attention_figure
        from safemargin.study.plots import save_figure

        save_figure(attention_figure(attention), output)
    print_answer(attention, print_attention, as_json=as_json)
    if output is not None and not as_json:
        print(f"wrote {output}")
    if budget is not None and not any(attention.choices):
        print(
            f"safemargin: no threshold keeps within {budget:g} of decisions at these tolerances",
            file=sys.stderr,
        )
        return FINDING
    return OK
