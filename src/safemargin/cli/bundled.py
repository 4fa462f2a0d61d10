"""The commands for what comes with the package: zoo, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from safemargin.cli.options import BUNDLED, Json, Output, app, print_json
from safemargin.errors import InvalidInput


@app.command(group=BUNDLED)
def zoo(
    show: Annotated[Literal["show"] | None, Parameter(name="show", show_choices=False)] = None,
    agent: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    as_json: Json = False,
) -> None:
    """List the bundled agents, or show one of them.

    For example:

        safemargin zoo
        safemargin zoo show pong-a3c

    Args:
        show: show the card of one agent
        agent: its name, as `safemargin zoo` lists it
    """
    from safemargin.cli.show_zoo import print_agents, print_card, summary
    from safemargin.policies.zoo import zoo_agents, zoo_card

    if show is not None:
        if agent is None:
            raise InvalidInput("zoo show needs the NAME of an agent; `safemargin zoo` lists them")
        card = zoo_card(agent)
        if as_json:
            print_json(card)
        else:
            print_card(card)
    elif as_json:
        print_json([summary(card) for card in zoo_agents()])
    else:
        print_agents(zoo_agents())


@app.command(group=BUNDLED)
def demo(
    *, output: Output = Path("runs/demo"), workers: int | None = None, as_json: Json = False
) -> None:
    """Run a small study of a bundled agent, from episodes to pictures.

    Args:
        output: the folder to write to
        workers: processes (default: one on each core)
    """
    from safemargin.cli.demo import run

    run(output, workers=workers, as_json=as_json)
