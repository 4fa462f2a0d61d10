"""Plans: what they say comes true, and nothing is written."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import collect as command
from helpers.paths import WORLDS
from helpers.studies import POLICY, SETTINGS, contents, create, select
from helpers.worlds import go_right, make_branching, make_lives

import safemargin as sm
from safemargin.cli import main
from safemargin.core.progress import Silence
from safemargin.errors import InvalidInput, StudyMismatch
from safemargin.study.forecast import Range


def plan(path: Path | None, natural: int = 14, spread: int = 12, **more: Any) -> sm.CostPlan:
    more.setdefault("workers", 1)
    return sm.plan_study(
        path, make_branching, POLICY, SETTINGS, natural=natural, spread=spread, **more
    )


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pilot's study is, and must not be any more afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def frozen_lake(path: Path) -> dict[str, Any]:
    settings = sm.Settings(
        trial_plan="paper", n_values=(1, 2, 4), sampling_error=0.1, max_trials=300
    )
    return {
        "path": path,
        "env": "FrozenLake-v1",
        "policy": sm.load_policy(go_right, kind="q"),
        "settings": settings,
        "env_arguments": {"map_name": "8x8"},
    }


def cart_pole(path: Path) -> dict[str, Any]:
    settings = sm.Settings(n_values=(1, 4, 16), trials=8, gamma=0.9, opening=10)
    return {"path": path, "env": "CartPole-v1", "policy": "zoo:cartpole", "settings": settings}


def lives(path: Path) -> dict[str, Any]:
    return {"path": path, "env": make_lives, "policy": POLICY, "settings": SETTINGS}


@pytest.mark.parametrize("parts", [frozen_lake, cart_pole, lives])
def test_what_it_says_comes_true(parts: Any, tmp_path: Path, own_temporary_folder: Path) -> None:
    given = parts(tmp_path / "study")
    planned = sm.plan_study(**given, natural=24, spread=24, workers=1)
    assert not (tmp_path / "study").exists()
    assert list(own_temporary_folder.iterdir()) == []
    assert planned.pilot_moments == 12
    with sm.Study.create(**given) as study:
        status = study.collect(24, 24, workers=1)
        taken = select(
            study.path,
            "SELECT n, SUM(costs.steps), IFNULL(SUM(trials), 0) FROM costs "
            "LEFT JOIN estimates USING (phase, episode, life, n) GROUP BY n",
        )
    found = planned.forecast
    assert found.steps.low <= status.simulator_steps <= found.steps.high
    assert found.steps.high < 4 * found.steps.low
    assert found.trials.low <= status.trials <= found.trials.high
    held = 0
    for stage, (n, steps, trials) in zip(found.stages, taken, strict=True):
        assert stage.n == n
        held += stage.steps.low <= steps <= stage.steps.high
        if given["settings"].trial_plan == "fixed":
            assert stage.trials == Range(trials, trials, trials)
    assert held >= len(taken) - 1  # nine times out of ten
    size = (tmp_path / "study" / "study.db").stat().st_size
    assert found.disk_bytes == pytest.approx(size - 32768, rel=0.3)  # less its empty tables
    # On a busy machine only the order of magnitude of the seconds is certain.
    assert planned.seconds.low < 10 * status.worker_seconds
    assert planned.seconds.high > status.worker_seconds / 10


def test_workers_change_the_time_and_nothing_else() -> None:
    one, two = plan(None, workers=1), plan(None, workers=2)
    for mine, theirs in zip(one.forecast.stages, two.forecast.stages, strict=True):
        assert mine.steps.high == pytest.approx(theirs.steps.high, rel=1e-9)
        assert mine.trials.low == pytest.approx(theirs.trials.low, rel=1e-9)
    assert (one.workers, two.workers) == (1, 2)
    spent = two.forecast.worker_seconds.expected / 2 + two.preparation_seconds
    assert two.seconds.expected == pytest.approx(spent)
    assert plan(None, natural=1, spread=1, workers=3).workers == 2  # of no use for two moments


# -- existing studies ---------------------------------------------------------------------------


def test_what_is_left_of_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study"
    with create(path) as study:
        spent = study.collect(4, 2, workers=1).simulator_steps
    before = contents(path)
    planned = plan(path)
    assert contents(path) == before
    assert planned.study == str(path)
    assert planned.forecast.left == {"natural": 10, "spread": 10}
    assert planned.forecast.sample == {"natural": 6, "spread": 6}
    assert planned.pilot_moments == 12  # its own first ones are checked more than is usual
    assert [saving.change for saving in planned.savings] == ["--natural 9 --spread 7"]
    with sm.Study.open(path, env=make_branching, policy=POLICY) as study:
        taken = study.collect(14, 12, workers=1).simulator_steps - spent
    assert planned.forecast.steps.low <= taken <= planned.forecast.steps.high

    finished = plan(path)
    assert finished.pilot_moments == 0
    assert finished.forecast.worker_seconds.expected == 0
    assert finished.savings == ()
    longer = plan(path, natural=100, spread=50, moments=6)  # enough is known to say so at once
    assert longer.pilot_moments == 0
    assert longer.forecast.left == {"natural": 86, "spread": 38}
    with sm.Study.open(path) as study:  # whose status says the same
        study.store.set_meta("target", {"natural": 100, "spread": 50, "workers": 3})
        left = study.status().seconds_left
    assert left == pytest.approx(longer.forecast.worker_seconds.expected / 3)


def test_a_collection_forecasts_its_own_rest(tmp_path: Path) -> None:
    """From its first moments on, as a plan or a status would, whatever their pace was so far."""
    said: list[tuple[float, float, float]] = []
    with create(tmp_path / "study") as study:

        class Told(Silence):
            def expect(self, seconds: float, low: float, high: float) -> None:
                assert seconds == pytest.approx(study.status().seconds_left)
                said.append((seconds, low, high))

        study.collect(8, 6, workers=1, progress=Told())
    assert len(said) == 12
    assert all(0 < low <= seconds <= high for seconds, low, high in said)


def test_another_study_is_refused_as_by_collect(tmp_path: Path) -> None:
    with create(tmp_path / "study"):
        pass
    with pytest.raises(StudyMismatch, match=r"other settings \(opening: 6, not 0\)"):
        sm.plan_study(
            tmp_path / "study",
            make_branching,
            POLICY,
            sm.Settings.from_mapping({**json.loads(SETTINGS.to_json()), "opening": 0}),
        )


# -- when to stop --------------------------------------------------------------------------------


class Interrupting:
    """Presses Ctrl-C after this many pieces."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces

    def stage(self, name: str, *, total: int, done: int) -> None: ...

    def advance(self, steps: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_ctrl_c_gives_what_there_is(own_temporary_folder: Path) -> None:
    planned = plan(None, progress=Interrupting(1 + 5 * 3))  # the doctor, and five moments
    assert planned.interrupted
    assert planned.pilot_moments == 5
    assert planned.forecast.steps.expected > 0
    with pytest.raises(KeyboardInterrupt):
        plan(None, progress=Interrupting(2))
    assert list(own_temporary_folder.iterdir()) == []


def test_a_time_limit_ends_with_the_round() -> None:
    assert plan(None, seconds=1e-6, moments=12).pilot_moments == 2


def test_bad_numbers() -> None:
    with pytest.raises(InvalidInput, match="a plan needs at least 2 moments, got 1"):
        plan(None, moments=1)
    with pytest.raises(InvalidInput, match="the seconds of a plan must be above 0, got 0"):
        plan(None, seconds=0)
    with pytest.raises(InvalidInput, match="natural and spread must be at least 0"):
        plan(None, natural=0, spread=0)
    with pytest.raises(InvalidInput, match="workers must be at least 1"):
        plan(None, workers=0)


# -- on the command line -------------------------------------------------------------------------


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study"
    assert main(command(path, "--plan")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert not path.exists()
    assert "always_first in " in out
    assert "14 natural + 12 spread moments" in out
    assert re.search(r"n = 4 │ \d+ │ [\d.]+( k)? \([\d.]+( k)? – [\d.]+( k)?\) │", out)
    assert "with one worker" in out
    assert "12 moments in" in out
    assert "cheaper --" in out
    assert main(command(path)) == 0
    capsys.readouterr()
    assert main(command(path, "--plan")) == 0
    assert capsys.readouterr().out == (
        f"nothing is left to collect: the study in {path} holds all of it\n"
    )


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "study", "--plan", "--json", "--plan-moments", "4")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pilot_moments"] == 4
    assert [stage["n"] for stage in printed["forecast"]["stages"]] == [0, 1, 2, 4]
    assert set(printed["seconds"]) == {"expected", "low", "high"}


def test_the_cost_at_the_cap_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *["collect", "FrozenLake-v1", f"{WORLDS}:go_right"],
        *["-o", str(tmp_path / "study"), "--scores", "q", "--env-arg", "map_name=8x8"],
        *["--trial-plan", "paper", "--sampling-error", "0.001", "--max-trials", "20"],
        *["--n", "1,2", "--natural", "20", "--spread", "0", "--workers", "1", "--plan"],
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "at the cap" in out
    assert "at worst  800 trials" in out


def test_ctrl_c_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bar(Interrupting):
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *exception: object) -> None: ...

    for pieces, printed in ((1 + 6, "stopped early"), (1, "")):
        monkeypatch.setattr("safemargin.cli.console.ProgressBar", lambda pieces=pieces: Bar(pieces))
        assert main(command(tmp_path / "study", "--plan")) == 130
        out, err = capsys.readouterr()
        assert printed in out
    assert out == ""
    assert "stopped before a moment was measured" in err
    assert not (tmp_path / "study").exists()
