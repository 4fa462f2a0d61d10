"""Fidelity: what mistakes cost where a ranking puts them, in worlds where that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.studies import contents

import safemargin as sm
from safemargin.cli import main
from safemargin.core.seeding import Purpose, stream
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.policies import Proxy
from safemargin.study import measure_fidelity
from safemargin.study.fidelity import BEST

GAMMA, LENGTH = 0.99, 60
# The scores of `always_first` grow with the state, so this one is highest at the first steps.
EARLY = Proxy("early", lambda scores, history, n: -float(scores[0]), ("logits",))
PER_N = Proxy(
    "per_n", lambda scores, history, n: float(scores[0] if n == 1 else -scores[0]), ("logits",),
    per_n=True,
)  # fmt: skip


def loss(state: int, n: int) -> float:
    """c(t, n) in the chain: it lives through each random action with probability 1/2."""
    left = np.arange(LENGTH - state)
    return float((GAMMA**left * (1 - 0.5 ** np.minimum(left + 1, n))).sum())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "chain"
    with sm.Study.create(
        path,
        f"{WORLDS}:make_chain",
        f"{WORLDS}:always_first",
        {"n_values": (1, 4), "trials": 4},
        scores="logits",
        proxies=[EARLY, PER_N],
    ) as made:
        made.collect(natural=8, spread=0, workers=1)
    return path


def test_closed_forms(study: Path) -> None:
    before = contents(study)
    with sm.Study.open(study, proxies=[EARLY, PER_N], trust=True) as opened:
        found = measure_fidelity(opened, n=4, engine="local")
        starts: dict[int, list[int]] = {}
        for key in opened.store.episode_outlines():
            episode = opened.store.episode(key)
            first = LENGTH - episode.steps  # episodes start in one of five states
            lot = stream(0, Purpose.FIDELITY, *key.stream_keys).integers(episode.steps - 4 + 1)
            starts[first] = [*starts.get(first, []), first + int(lot)]
    assert contents(study) == before
    assert (found.n, found.episodes, found.plays) == (4, 8, len(starts))
    assert (found.mistakes, found.loss) == ("random actions", "loss of discounted reward")
    rows = {row.ranking: row for row in found.rows}
    early = np.mean([loss(first, 4) for first in starts])
    late = loss(LENGTH - 4, 4)
    # Copies of one play count once: lot is averaged over them first.
    lot_loss = np.mean([np.mean([loss(at, 4) for at in drawn]) for drawn in starts.values()])
    for name, expected in (
        ("early", early),
        ("per_n", early),
        ("log_prob_range", late),
        ("lot", lot_loss),
    ):
        assert rows[name].loss == pytest.approx(expected, abs=1e-9), name
        assert rows[name].gain == pytest.approx(expected - lot_loss, abs=1e-9), name
    assert rows["lot"].gain == rows["lot"].gain_half_width == 0
    assert rows[BEST].loss >= max(row.loss for row in found.rows) - 1e-12
    assert rows["log_prob_range"].half_width == pytest.approx(0, abs=1e-9)
    assert (rows["early"].gain_half_width or 0) > 0
    ranked = [row.gain for row in found.rows]
    assert ranked == sorted(ranked, reverse=True)
    assert found.rows[-1].gain < 0 < found.rows[0].gain


def test_it_is_about_what_the_study_measures(tmp_path: Path) -> None:
    with sm.Study.create(
        tmp_path / "study",
        f"{WORLDS}:make_chain",
        f"{WORLDS}:always_first",
        {"n_values": (2,), "perturb": "stuck:1", "signal": "termination"},
        scores="logits",
    ) as made:
        made.collect(natural=2, spread=0, workers=1)
        found = measure_fidelity(made, proxies=["log_prob_range"], episodes=1, engine="local")
    assert found.mistakes == "steps with the action stuck at 1"
    (row,) = [row for row in found.rows if row.ranking == "log_prob_range"]
    # Two steps before the end, the first mistake ends it: one step instead of two.
    assert (row.loss, row.half_width, found.plays) == (1.0, None, 1)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "study")
    made: Any = ["collect", f"{WORLDS}:make_chain", f"{WORLDS}:always_first", "-o", path, "--n"]
    made += ["1,2", "--scores", "logits", "--natural", "3", "--spread", "0", "--workers", "1"]
    assert main(made) == 0
    capsys.readouterr()
    assert main(["fidelity", path, "--workers", "1", "--episodes", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Loss of discounted reward by 2 random actions, placed by each ranking in 2" in printed
    assert main(["fidelity", path, "--workers", "1", "--proxy", "log_prob_range", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["ranking"] for row in rows} == {"log_prob_range", "lot", BEST}
    assert main(["fidelity", path, "--n", "3"]) == 2
    assert "the study measures n = 1, 2, not 3" in capsys.readouterr().err


def test_bad_input(study: Path, tmp_path: Path) -> None:
    with sm.Study.open(study, proxies=[EARLY, PER_N], trust=True) as opened:
        with pytest.raises(InvalidInput, match="no ranking 'erly' is .* did you mean 'early'"):
            measure_fidelity(opened, proxies=["erly"])
        with pytest.raises(InvalidInput, match="fidelity takes at least 1 episode, got 0"):
            measure_fidelity(opened, episodes=0)
        with pytest.raises(InvalidInput, match="workers must be at least 1"):
            measure_fidelity(opened, workers=0)
    with (
        sm.Study.create(
            tmp_path / "empty",
            f"{WORLDS}:make_chain",
            f"{WORLDS}:always_first",
            {"n_values": (1,)},
            scores="logits",
        ) as empty,
        pytest.raises(StudyIncomplete, match="no natural episode of the study in .* has 1"),
    ):
        measure_fidelity(empty)
