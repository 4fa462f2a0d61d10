"""Games under attack, in worlds where their cost is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.runners import Counting, runner_in
from helpers.studies import damaged
from helpers.worlds import Masked, TableWorld, chain

import safemargin as sm
from safemargin.cli import main
from safemargin.criticality.stopping import student_quantile
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.monitor.attack import CRITICALITY, Attacked, AttackRow, measure_attack
from safemargin.monitor.attack_plot import attack_figure
from safemargin.monitor.attackers import make_attack
from safemargin.monitor.timing import ByCriticality, Purse, Rule

LENGTH = 60


def create(path: Path, environment: str = "make_chain", **settings: Any) -> sm.Study:
    given = sm.Settings(**{"n_values": (1, 2), "trials": 4, "gamma": 0.9, **settings})
    policy = f"{WORLDS}:{'always_first' if 'chain' in environment else 'swerve'}"
    return sm.Study.create(path, f"{WORLDS}:{environment}", policy, given, scores="logits")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attack") / "chain"
    with create(path) as made:
        made.collect(natural=20, spread=0, workers=1)
    return path


def rows_of(found: Attacked) -> dict[str, AttackRow]:
    return {row.ranking: row for row in found.rows}


def test_attacks_by_lot(study: Path) -> None:
    with sm.Study.open(study, trust=True) as opened:
        found = measure_attack(opened, budgets=[0.1], by=["lot"], games=150)
    row = rows_of(found)["lot"]
    # Of L steps of a game, 6 (or 5) are drawn by lot, one after another, and each is survived with
    # 1/2; the fatal one pays nothing. Games start at 0 … 4.
    alone = [LENGTH - start for start in range(5)]
    expected = np.mean([pays_by_lot(steps, round(0.1 * steps)) for steps in alone])
    assert row.half_width is not None
    assert row.score is not None
    assert abs(row.score - expected) <= 1.5 * row.half_width
    assert row.attacks == pytest.approx(2, abs=0.4)  # until the first fatal one
    assert row.loss == pytest.approx(found.score - row.score)
    assert found.steps == found.score


def pays_by_lot(steps: int, attacks: int) -> float:
    """What the chain pays where this many of its steps are drawn by lot, each survived with 1/2."""
    alive, paid = np.eye(attacks + 1)[0], 0.0  # [attacks so far]
    for step in range(steps):
        chance = np.clip((attacks - np.arange(attacks + 1)) / (steps - step), 0, 1)
        alive, struck = alive * (1 - chance), alive * chance / 2
        alive[1:] += struck[:-1]
        paid += alive.sum()
    return float(paid)


def test_all_rankings_attack_as_often(tmp_path: Path) -> None:
    # Nothing ends this walk, so that every attack of the budget is made.
    with create(tmp_path / "study", "make_swerving") as made:
        made.collect(natural=3, spread=0, workers=1)
        budgets = [0.05, 0.2]
        found = measure_attack(
            made, budgets=budgets, attack="worst", by=["lot", "log_prob_range", "prob_range"],
            games=4,
        )  # fmt: skip
    for budget in budgets:
        rows = [row for row in found.rows if row.budget == budget and row.ranking != CRITICALITY]
        assert len({row.attacks for row in rows}) == 1
        for row in rows:
            assert row.attacks == pytest.approx(budget * found.steps, abs=0.5)
            assert row.loss == pytest.approx(row.attacks)  # each wrong action costs 1


def test_attacks_where_the_proxy_is_high(study: Path) -> None:
    with sm.Study.open(study, trust=True) as opened:
        for attack in ("worst", "exact"):
            found = measure_attack(
                opened, budgets=[0.25], attack=attack, by=["log_prob_range"], games=6
            )
            # The proxy grows with the state, so the walk ends where it reaches the threshold.
            traces = [trace.values for trace in opened.store.proxy_traces("log_prob_range")]
            rule = Rule.for_budget(np.concatenate(traces), 0.25)
            row = rows_of(found)["log_prob_range"]
            assert row.score is not None
            assert row.attacks == 1.0
            # Steps that were not attacked leave more of the budget, so the bar falls on the way.
            states = rule.threshold - 1  # the score of action 0 is 1 + the state
            assert 0.25 * LENGTH <= row.score + LENGTH - found.score <= states


def test_attacks_by_true_criticality(study: Path, tmp_path: Path) -> None:
    # In the chain, a wrong step costs all that is left: most at once, where the proxy is lowest.
    unfinished = damaged(study, tmp_path / "unfinished", "DELETE FROM estimates WHERE episode = 3")
    with sm.Study.open(unfinished, trust=True) as opened:
        found = measure_attack(
            opened, budgets=[0.25], attack="worst", by=["criticality", "log_prob_range"], games=3
        )
    rows = rows_of(found)
    assert (rows["criticality"].score, rows["criticality"].attacks) == (0.0, 1.0)
    assert rows["log_prob_range"].score != 0
    # The measured moments that it takes are those of the last row.
    assert rows["criticality"].measured == rows[CRITICALITY].measured
    for made_of in ({"perturb": "stuck"}, {"n_values": (2,)}, {"reference": "lookahead:2"}):
        with create(tmp_path / str(made_of), **made_of) as other:
            other.collect(natural=1, spread=0, workers=1)
            with pytest.raises(InvalidInput, match="--by criticality tries every action at every"):
                measure_attack(other, by=["criticality"])


def test_true_criticality_takes_what_can_be_tried(study: Path) -> None:
    def first(rows: np.ndarray) -> np.ndarray:
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(rows), 1))

    with sm.Study.open(study, trust=True) as opened:
        ranking = ByCriticality(opened)
    masked, recurrent = runner_in(Masked(), first), runner_in(TableWorld(chain(9)), Counting())
    for runner, message in ((masked, "always legal"), (recurrent, "without a memory")):
        runner.simulator.reset(0)
        with pytest.raises(InvalidInput, match=f"--by criticality takes .* {message}"):
            ranking.now(runner, np.zeros(4, np.float32), np.empty((1, 0)), 0)


def test_the_rule_spends_the_budget() -> None:
    values = np.array([1.0, 3.0, 3.0, 3.0, 2.0, 0.0, 0.0, 0.0])
    for budget in (0.125, 0.25, 0.5, 0.6, 0.9):
        rule = Rule.for_budget(values, budget)
        assert rule.weights(values).sum() == pytest.approx(budget * len(values))
    assert Rule.for_budget(values, 0.25) == Rule(3.0, 2 / 3)
    assert Rule.for_budget(values, 0.5) == Rule(1.0, 0.0)


def test_a_purse_is_spent_over_the_game() -> None:
    purse = Purse(np.array([0.0, 1.0, 2.0, 3.0]), attacks=2, steps=8)
    # At first, the highest quarter of the values: of these four, the 3.
    assert [purse.chance(value, 0, 0) for value in (3.5, 3.0, 2.0)] == [1.0, 1.0, 0.0]
    # Two attacks are left for four steps: the higher half.
    assert [purse.chance(value, 4, 0) for value in (3.0, 2.0, 1.0)] == [1.0, 1.0, 0.0]
    # One for three steps: the 3, and the 2 with a chance of a third.
    assert purse.chance(2.0, 5, 1) == pytest.approx(1 / 3)
    assert purse.chance(0.0, 6, 0) == 1.0  # as many attacks as steps are left
    assert purse.chance(3.0, 2, 2) == 0.0  # all are spent
    assert purse.chance(0.0, 20, 1) == 1.0  # the game lasts longer than without an attack


def test_what_was_measured_stands_beside_it(study: Path) -> None:
    with sm.Study.open(study, trust=True) as opened:
        found = measure_attack(opened, budgets=[0.1, 0.5], by=["lot", "log_prob_range"], games=2)
        losses = opened.tuples().criticalities[:, 0]
    by = {(row.ranking, row.budget): row for row in found.rows}
    best = np.sort(losses)[::-1]
    assert by[CRITICALITY, 0.1].measured == pytest.approx(best[:2].mean())
    assert by[CRITICALITY, 0.5].measured == pytest.approx(best[:10].mean())
    assert by[CRITICALITY, 0.5].loss is None
    assert by["lot", 0.1].measured == pytest.approx(losses.mean())
    # All moments are as likely, so the band is that of their plain mean.
    half = student_quantile(0.95, 20) * losses.std(ddof=1) / 20**0.5
    assert by["lot", 0.1].measured_half_width == pytest.approx(half)
    assert (found.n, found.mistakes) == (1, "random action")


def test_finished_games_are_kept(study: Path, tmp_path: Path) -> None:
    kept = tmp_path / "games.json"

    class Stopped(Exception):
        pass

    class Progress:
        def __init__(self, left: int) -> None:
            self.left, self.played = left, 0

        def stage(self, name: str, *, total: int, done: int) -> None:
            pass

        def advance(self, steps: int) -> None:
            self.played += steps > 0
            self.left -= 1
            if self.left == 0:
                raise Stopped

    with sm.Study.open(study, trust=True) as opened:
        given: dict[str, Any] = {"budgets": [0.1], "by": ["lot"], "games": 4, "kept": kept}
        with pytest.raises(Stopped):
            measure_attack(opened, progress=Progress(6), **given)
        rest = Progress(99)
        again = measure_attack(opened, progress=rest, **given)
        assert rest.played == 8 - 6
        assert again == measure_attack(opened, **{**given, "kept": None})
    kept.write_text("[")
    with (
        sm.Study.open(study, trust=True) as opened,
        pytest.raises(InvalidInput, match="is no file of attacked games"),
    ):
        measure_attack(opened, **given)


def test_the_picture_has_a_line_for_each_ranking() -> None:
    def row(ranking: str, budget: float, loss: float | None) -> AttackRow:
        return AttackRow(ranking, budget, 3.0, 9.0, loss, 0.5, None, None)

    rows = (row("lot", 0.01, 1.0), row("margin", 0.01, 2.0), row(CRITICALITY, 0.01, None))
    rows += (row("lot", 0.1, 3.0), row("margin", 0.1, 4.0))
    (axes,) = attack_figure(Attacked("random", "mistakes", 9, 20.0, 60.0, 1, "x", rows)).axes
    lines = {line.get_label(): line for line in axes.containers}
    assert list(lines) == ["lot", "margin"]
    assert lines["margin"].lines[0].get_ydata().tolist() == [2.0, 4.0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1 %", "10 %"]


def test_false_observations() -> None:
    found = make_attack("observation:0.5")
    assert "differ by up to 0.5 of the range" in found.words


def test_false_observations_mislead_the_agent(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_swerving") as made:
        made.collect(natural=2, spread=0, workers=1)
        found = measure_attack(made, budgets=[0.5], attack="observation:1", by=["lot"], games=4)
    row = rows_of(found)["lot"]
    assert row.loss is not None
    assert row.loss > 1  # any state can be faked, and the other parity has the other action


def test_the_command_line(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["attack", str(study), "--games", "2", "--games-file", str(tmp_path / "games.json")]
    drawn = tmp_path / "attack.svg"
    assert main([*base, "--budget", "0.05,0.2", "--by", "lot", "margin", "-o", str(drawn)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"wrote {drawn}" in printed
    assert drawn.stat().st_size > 5000
    assert "Games attacked by a random action (2 for each row" in printed
    assert main([*base, "--by", "lot", "--attack", "worst", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == "the action with the least score"
    assert [row["ranking"] for row in found["rows"]] == ["lot", CRITICALITY]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": [0.0]}, "a budget is a share of steps between 0 and 1, got 0"),
        ({"games": 1}, "an attack takes at least 2 games for a band, got 1"),
        ({"attack": "wrost"}, "attack 'wrost' is unknown; did you mean 'worst'"),
        ({"attack": "observation"}, "attack 'observation': write observation:EPS"),
        ({"attack": "observation:2"}, "with EPS above 0 and up to 1"),
        ({"by": ["lott"]}, "there is no ranking 'lott'; did you mean 'lot'"),
    ],
)
def test_bad_input(study: Path, given: dict[str, Any], message: str) -> None:
    with sm.Study.open(study, trust=True) as opened, pytest.raises(InvalidInput, match=message):
        measure_attack(opened, **given)


def test_exact_takes_a_world_without_chance(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_slipping") as made:
        with pytest.raises(StudyIncomplete, match="has no natural episode to learn thresholds"):
            measure_attack(made, by=["lot"])
        made.collect(natural=1, spread=0, workers=1)
        with pytest.raises(InvalidInput, match="attack 'exact' tries every action"):
            measure_attack(made, attack="exact", by=["lot"])
