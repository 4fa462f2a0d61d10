"""`safemargin gate` as continuous integration runs it: exit statuses, files, refusals."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.gates import DECIDED, collect_road
from helpers.paths import WORLDS

from safemargin.cli import main
from safemargin.study.store import DATABASE

PASSED, WORSE, BAD_INPUT, CANNOT_TELL = 0, 1, 2, 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies of an agent, and of one that is damaged, on the same roads; and a baseline file."""
    folder = tmp_path_factory.mktemp("gate")
    collect_road(folder / "old", "always_first")
    collect_road(folder / "bad", "careless")
    assert main(["gate", f"{folder}/old", "--save-baseline", f"{folder}/baseline.json"]) == 0
    return folder


def gate(runs: Path, candidate: str, *more: str, baseline: str = "baseline.json") -> int:
    return main(["gate", f"{runs}/{candidate}", "--baseline", f"{runs}/{baseline}", *more])


def test_an_agent_that_is_no_worse_passes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(runs, "old", *DECIDED) == PASSED
    said = capsys.readouterr()
    assert "passed: no check found a deterioration that matters" in said.out
    assert "note: the same agent on both sides" in said.err


def test_a_study_and_the_file_made_of_it_give_the_same_answer(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for baseline in ("old", "baseline.json"):
        assert gate(runs, "bad", "--json", *DECIDED, baseline=baseline) == WORSE
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["checks"] == answers[1]["checks"]
    assert (runs / "baseline.json").stat().st_size < (runs / "old" / DATABASE).stat().st_size / 2


def test_a_damaged_agent_is_worse(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(runs, "bad", *DECIDED) == WORSE
    assert "worse: return" in capsys.readouterr().out


def test_too_few_moments_cannot_tell(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(runs, "old") == CANNOT_TELL
    assert "more natural moments of each" in capsys.readouterr().out


def test_report_only_always_exits_with_0(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for candidate in ("bad", "old", "missing"):
        assert gate(runs, candidate, "--report-only") == PASSED
    assert "missing does not exist" in capsys.readouterr().err
    assert gate(runs, "missing", "--report-only", "--json") == PASSED
    assert json.loads(capsys.readouterr().out)["kind"] == "BaselineFileError"


def test_it_writes_what_continuous_integration_reads(runs: Path, tmp_path: Path) -> None:
    junit, summary, report = tmp_path / "a/gate.xml", tmp_path / "summary.md", tmp_path / "b.html"
    summary.write_text("said before\n")
    files = ["--junit", str(junit), "--summary", str(summary), "--report", str(report)]
    assert gate(runs, "bad", *DECIDED, *files) == WORSE
    suite = ElementTree.fromstring(junit.read_bytes())[0]
    assert (len(suite), suite.get("tests")) == (7, "7")
    assert summary.read_text().startswith("said before\n## safemargin gate: ❌ worse")
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert "src=" not in page
    assert "href=" not in page
    # A second run replaces the files, and adds to the summary.
    assert gate(runs, "missing", *files) == BAD_INPUT
    assert ElementTree.fromstring(junit.read_bytes())[0].get("errors") == "1"
    assert summary.read_text().count("## safemargin gate") == 2


def unfinished(runs: Path, tmp_path: Path) -> Path:
    """A study that somebody interrupted."""
    shutil.copytree(runs / "old", tmp_path / "unfinished")
    with sqlite3.connect(tmp_path / "unfinished" / DATABASE) as database:
        database.execute("DELETE FROM estimates WHERE episode > 20")
    database.close()
    return tmp_path / "unfinished"


def test_bad_input_is_never_worse(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and one sentence: 1 would read as a finding about the agent."""
    dark = collect_road(tmp_path / "dark", "always_first", environment=f"{WORLDS}:make_dark_road")
    settings = collect_road(tmp_path / "settings", "always_first", "--gamma", "0.9")
    other = json.loads((runs / "baseline.json").read_text())
    other["versions"]["gymnasium"] = "0.29.0"
    (tmp_path / "versions.json").write_text(json.dumps(other))
    (tmp_path / "cut.json").write_bytes((runs / "baseline.json").read_bytes()[:-100])
    (tmp_path / "margins.json").write_text('{"format": "safemargin-margins"}')
    (tmp_path / "empty").mkdir()
    spoilt = shutil.copytree(runs / "old", tmp_path / "spoilt")
    (spoilt / DATABASE).write_bytes(b"no database at all" * 100)
    expected = {
        dark: "measured in another environment",
        settings: "made with other settings .*gamma: 0.99, not 0.9",
        tmp_path / "versions.json": "made with other versions .*gymnasium .*--other-versions",
        tmp_path / "cut.json": "not valid JSON .*--save-baseline",
        tmp_path / "margins.json": "is not a baseline",
        tmp_path / "missing": "does not exist; name a study's folder, or a file",
        tmp_path / "empty": "no study",
        spoilt: "",
        unfinished(runs, tmp_path): "is not finished .*run `safemargin collect`",
    }
    capsys.readouterr()
    for path, text in expected.items():
        for sides in ([str(runs / "old"), str(path)], [str(path), str(runs / "old")]):
            assert main(["gate", sides[0], "--baseline", sides[1], *DECIDED]) == BAD_INPUT, path
            said = capsys.readouterr()
            assert (said.out, said.err.count("\n")) == ("", 1)
            if sides[1] == str(path):
                assert re.search(text, said.err), said.err


def test_other_versions_can_be_compared_on_request(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.loads((runs / "baseline.json").read_text())
    other["versions"]["gymnasium"] = "0.29.0"
    (tmp_path / "versions.json").write_text(json.dumps(other))
    words = ["gate", str(runs / "bad"), "--baseline", f"{tmp_path}/versions.json", *DECIDED]
    assert main([*words, "--other-versions"]) == WORSE
    assert "note: other versions: gymnasium" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--matters", "return"], "'return' must look like CHECK=VALUE, e.g. return=5%"),
        (["--matters", "retrun=1"], "did you mean 'return'"),
        (["--tolerance", "much"], "'much' must be comma-separated numbers"),
        (["--proxy", "nonsense"], "holds the proxy 'log_prob_range', not 'nonsense'"),
        (["--worst", "5"], "worst must lie above 0 and be at most 0.5, got 5"),
        (["--sumary", "x"], "Did you mean --summary?"),
    ],
)
def test_wrong_options_exit_with_2(
    runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    assert gate(runs, "bad", *options) == BAD_INPUT
    assert text in capsys.readouterr().err


def test_a_gate_needs_the_old_checkpoint(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", str(runs / "old")]) == BAD_INPUT
    assert "name the old checkpoint with --baseline STUDY|FILE" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--summary", "--junit", "--report", "--save-baseline"])
def test_a_file_that_cannot_be_written_is_no_verdict(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert gate(runs, "old", *DECIDED, option, str(tmp_path)) == BAD_INPUT
    assert f"{tmp_path} cannot be written: Is a directory" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert gate(runs, "old", *DECIDED, option, f"{tmp_path}/file/below/x") == BAD_INPUT
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_the_gate_itself_is_no_verdict(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("safemargin.study.gating.compared", fault)
    assert gate(runs, "bad") == BAD_INPUT
    assert "nothing was compared: ZeroDivisionError: of ours" in capsys.readouterr().err


def test_a_new_baseline_is_written_only_if_the_checkpoint_passes(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    shutil.copy(runs / "baseline.json", baseline)
    before = baseline.read_bytes()
    again = ["--baseline", str(baseline), "--save-baseline", str(baseline), *DECIDED]
    assert main(["gate", str(runs / "bad"), *again]) == WORSE
    assert baseline.read_bytes() == before
    assert "baseline.json was not written, because STUDY did not pass" in capsys.readouterr().err
    baseline.write_text(baseline.read_text().replace("always_first", "an_older_one"))
    assert main(["gate", str(runs / "old"), *again]) == PASSED
    assert baseline.read_bytes() == before


def test_help_names_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit status: 0 passed; 1 worse; 2 bad input; 3 cannot tell yet" in said


def test_a_study_of_several_mistakes_is_gated_by_those_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--n", "1,2", "--trials", "4", "--natural", "12", "--spread", "0", "--workers", "1"]
    collect_road(tmp_path / "old", "always_first", "--perturb", "stuck,random", settings=quick)
    collect_road(tmp_path / "new", "always_first", "--perturb", "random,stuck", settings=quick)
    capsys.readouterr()

    def compare(*more: str, baseline: str = "old") -> dict[str, list[object]]:
        gate(tmp_path, "new", "--json", *DECIDED, *more, baseline=baseline)
        found: dict[str, list[object]] = json.loads(capsys.readouterr().out)
        return found

    # The candidate takes the mistakes of the baseline: its first ones, or those of the file.
    assert compare()["checks"] == compare("--perturb", "stuck")["checks"]
    assert compare()["checks"] != compare("--perturb", "random")["checks"]
    file = tmp_path / "random.json"
    saved = ["gate", f"{tmp_path}/old", "--save-baseline", str(file), "--perturb", "random"]
    assert main(saved) == 0
    capsys.readouterr()
    assert compare(baseline=file.name)["checks"] == compare("--perturb", "random")["checks"]
    assert gate(tmp_path, "new", "--perturb", "stuck", baseline=file.name) == BAD_INPUT
    assert "is about perturb 'random', not 'stuck'; write it again" in capsys.readouterr().err
    assert gate(tmp_path, "new", "--signal", "cost", baseline="old") == BAD_INPUT
    assert "does not measure signal 'cost'" in capsys.readouterr().err
