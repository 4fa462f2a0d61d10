"""The command that plays games under attack: attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from safemargin.cli import options

if TYPE_CHECKING:
    from safemargin.monitor.attack import Attacked, AttackRow


@options.app.command(group=options.MARGINS)
@options.on_ctrl_c(options.KEPT)
def attack(
    study: options.StudyFolder,
    /,
    *,
    budget: options.Numbers | None = None,
    attack: Annotated[str, Parameter(metavar="A")] = "random",
    by: Annotated[list[str] | None, Parameter(consume_multiple=1, metavar="RANKING...")] = None,
    games: int = 20,
    confidence: options.Confidence = 0.95,
    tolerance: float = 0.5,
    output: options.Output | None = None,
    games_file: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    about: options.About = options.About(),
    as_json: options.Json = False,
) -> None:
    """Compare when to attack an agent: what the same number of attacked steps costs.

    Plays fresh games, the same starts for every ranking, and attacks as many steps of each as the
    budget says, where the values are among the highest of the study's natural episodes. The loss is
    the fall of a game's sum of rewards, paired by start, with 95 % bands. Beside it stands what the
    study measured at as large a share of its natural moments, also by what was measured there.

    Finished games are kept in a file; run the same command again to continue.

    For example:

        safemargin attack runs/pong --budget 0.01,0.05,0.1 --attack worst -o attack.png

    Args:
        budget: attack this share of the steps that a game takes without an attack (default: 0.05);
            several give a curve
        attack: random (a random action), worst (the action with the least score), exact (the
            action that costs most, by trying all), or observation:EPS (a false observation that
            differs by up to EPS of the range)
        by: lot, proxies, margin, learned, or criticality, which tries every action at every step
            and takes hours in an Atari game (default: lot, the default proxy, margin, and learned
            if there is one)
        games: play this many games for each ranking and budget
        tolerance: the loss at which margins are looked up
        output: draw it as well, into a .png, .svg or .pdf file
        games_file: keep the games in this file (default: attacks.json in the study's folder)
    """
    from safemargin.cli.console import ProgressBar, study_to_judge
    from safemargin.monitor.attack import measure_attack

    with study_to_judge(study, about) as opened, ProgressBar() as progress:
        found = measure_attack(
            opened,
            budgets=budget or (0.05,),
            attack=attack,
            by=by,
            games=games,
            confidence=confidence,
            tolerance=tolerance,
            kept=opened.path / "attacks.json" if games_file is None else games_file,
            progress=progress,
        )
    if output is not None:
        from safemargin.monitor.attack_plot import attack_figure
        from safemargin.study.plots import save_figure

        save_figure(attack_figure(found), output)
    options.print_answer(found, _print_attack, as_json=as_json)
    if output is not None and not as_json:
        print(f"wrote {output}")


def _print_attack(found: Attacked) -> None:
    from safemargin.cli.console import print_records

    def band(value: float | None, half: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.3g}" + ("" if half is None else f" ± {half:.2g}")

    def attacks(row: AttackRow) -> str:
        return "–" if row.attacks is None else f"{row.attacks:.1f}"

    print_records(
        f"Games attacked by {found.words} ({found.games} for each row; without an attack they "
        f"score {found.score:.3g} in {found.steps:,.0f} steps; 95 % bands)",
        found.rows,
        ("budget", lambda row: f"{row.budget:.1%}"),
        ("steps chosen by", lambda row: row.ranking),
        ("attacks a game", attacks),
        ("score", lambda row: band(row.score, None)),
        ("loss", lambda row: band(row.loss, row.half_width)),
        (
            f"measured loss of {found.n} {found.mistakes}",
            lambda row: band(row.measured, row.measured_half_width),
        ),
    )
