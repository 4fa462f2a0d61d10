"""The command that tests rankings of steps: fidelity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import safemargin as sm
from safemargin.cli import options
from safemargin.cli.study import EngineOptions

if TYPE_CHECKING:
    from safemargin.study.fidelity import Fidelity


@options.app.command(group=options.MARGINS)
def fidelity(
    study: options.StudyFolder,
    /,
    *,
    n: int | None = None,
    episodes: int = 50,
    proxy: Annotated[list[str] | None, Parameter(consume_multiple=1, metavar="NAME...")] = None,
    engine: EngineOptions = EngineOptions(),
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Test whether mistakes cost more at the steps that a proxy calls important than at any step.

    In each natural episode, the n steps in a row with the highest mean proxy are chosen, and the
    mistakes of the study are made there; beside them, at steps drawn by lot. The gain is the loss
    at the chosen steps less that by lot: above 0, the proxy finds what matters. Nothing is written.

    For example:

        safemargin fidelity runs/pong --n 8 --episodes 100

    Args:
        n: number of mistakes, one that the study measures (default: the largest)
        episodes: take this many natural episodes at most
        proxy: rank by these (default: all that are recorded along episodes)
    """
    from safemargin.cli.console import ProgressBar
    from safemargin.study.fidelity import measure_fidelity

    with sm.Study.open(study, **vars(about)) as opened, ProgressBar() as progress:
        found = measure_fidelity(
            opened, n=n, episodes=episodes, proxies=proxy, progress=progress, **vars(engine)
        )
    options.print_answer(found, _print_fidelity, as_json=as_json)


def _print_fidelity(found: Fidelity) -> None:
    from safemargin.cli.console import print_records

    def band(value: float, half_width: float | None) -> str:
        return f"{value:.3g}" + ("" if half_width is None else f" ± {half_width:.2g}")

    print_records(
        f"{found.loss[0].upper()}{found.loss[1:]} by {found.n} {found.mistakes}, placed by each "
        f"ranking in {found.episodes:,} natural episodes ({found.plays:,} plays; 95 % bands)",
        found.rows,
        ("ranking", lambda row: row.ranking),
        ("loss", lambda row: band(row.loss, row.half_width)),
        ("gain over lot", lambda row: band(row.gain, row.gain_half_width)),
    )
