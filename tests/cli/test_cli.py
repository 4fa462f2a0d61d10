"""The command line: what it prints, what it returns, and one sentence for everything wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import (
    ENVIRONMENT,
    POLICY,
    SLOW_ENVIRONMENT,
    WORLDS,
    collect,
    let_ctrl_c_through,
)
from helpers.jobs import wait_until
from helpers.studies import contents, estimates_in

from safemargin.cli import main
from safemargin.cli.options import app
from safemargin.core.settings import Settings
from safemargin.core.version import __version__
from safemargin.study.store import DATABASE


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "study"
    assert main(collect(path)) == 0
    return path


@pytest.fixture(scope="module")
def margins_file(study: Path) -> Path:
    path = study.parent / "margins.json"
    assert main(["fit", str(study), "-o", str(path)]) == 0
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command: exit status, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_a_study_from_end_to_end(run: Any, study: Path, tmp_path: Path) -> None:
    status, out, _ = run("status", study)
    assert status == 0
    assert "natural      14 of 14 moments" in out
    assert "left         nothing" in out

    margins = tmp_path / "margins.json"
    status, out, _ = run(
        *["fit", study, "-o", margins, "--tolerance", "1,5", "--confidence", "0.9"]
    )
    assert status == 0
    title = "Safety margins (confidence 0.9, method 'calibrated', mean loss at a moment)"
    assert title in " ".join(out.split())
    assert margins.exists()

    status, out, _ = run("margin", margins, "--proxy", "2", "--tolerance", "1000000")
    assert (status, out) == (0, "4\n")
    status, out, err = run("margin", margins, "--proxy", "1e9", "--tolerance", "5")
    assert (status, out) == (0, "0\n")
    assert "lies above" in err

    status, out, _ = run("validate", study)
    assert status == 0
    assert "percentile error" in out
    assert "Coverage on unseen natural moments" in out
    assert "permutation test" in out

    status, out, _ = run("plot", study, "-o", tmp_path / "figures", "--format", "svg")
    assert status == 0
    assert [Path(line).exists() for line in out.splitlines()] == [True] * 3

    status, out, _ = run("export", study, "-o", tmp_path / "tuples.csv")
    assert status == 0
    assert (tmp_path / "tuples.csv").exists()


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (["status", "STUDY"], {"moments", "seconds_left", "settings", "diagnosis"}),
        (["fit", "STUDY", "-o", "TMP/m.json"], {"margins", "upper", "n_values"}),
        (["validate", "STUDY"], {"coverage", "sample_sizes"}),
        (["plot", "STUDY", "-o", "TMP"], {"figures"}),
        (["export", "STUDY", "-o", "TMP/t.csv"], {"table"}),
        (["doctor", "CartPole-v1"], {"measurable", "way", "verdict", "findings"}),
        (["collect"], {"moments", "estimates_left"}),
    ],
)
def test_json_is_one_document(
    run: Any, study: Path, tmp_path: Path, command: list[str], keys: set[str]
) -> None:
    if command == ["collect"]:
        arguments = collect(study)  # all is there already
    else:
        arguments = [
            word.replace("STUDY", str(study)).replace("TMP", str(tmp_path)) for word in command
        ]
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    assert keys <= set(json.loads(out))


def test_margin_as_json(run: Any, study: Path, tmp_path: Path) -> None:
    run("fit", study, "-o", tmp_path / "m.json", "--confidence", "0.9")
    _, out, _ = run("margin", tmp_path / "m.json", "--proxy", "2", "--tolerance", "9e9", "--json")
    assert json.loads(out)["margin"] == 4
    assert json.loads(out)["estimand"] == "mean"


def test_too_few_moments_for_the_confidence(run: Any, study: Path, tmp_path: Path) -> None:
    status, out, err = run("fit", study, "-o", tmp_path / "m.json", "--confidence", "0.99")
    assert status == 0
    assert err.startswith("note: no bound, so every margin is 0: a confidence of 0.99 needs 99 ")
    assert "there are 14" in err
    _, out, _ = run("margin", tmp_path / "m.json", "--proxy", "2", "--tolerance", "9e9")
    assert out == "0\n"
    _, out, _ = run("status", study)
    assert "allows a confidence of 0.9; 0.95 needs 19, 0.99 needs 99, 0.999 needs 999" in out


def test_the_loss_of_a_single_run(run: Any, study: Path, tmp_path: Path) -> None:
    status, out, _ = run(
        *["fit", study, "-o", tmp_path / "m.json", "--confidence", "0.9"],
        *["--estimand", "single-run"],
    )
    assert status == 0
    assert "loss of a single run): how many random actions" in " ".join(out.split())
    assert json.loads((tmp_path / "m.json").read_text())["estimand"] == "single-run"
    status, out, _ = run("validate", study, "--confidence", "0.9", "--estimand", "single-run")
    assert status == 0
    assert "loss of a single run" in out


def test_compare_names_a_winner(run: Any, study: Path) -> None:
    status, out, _ = run("compare", study, "--confidence", "0.7", "--tolerance", "1,5")
    assert status == 0
    assert "tolerance 1: " in out
    assert "yes, cannot win" in out
    assert "'paper, no lift' cannot win, however large its margins" in out
    assert "no difference that these moments could show between all" in out
    assert "random signs" in out
    status, out, _ = run("compare", study, "--confidence", "0.7", "--json")
    found = json.loads(out)
    assert {row["proxy"] for row in found["candidates"]} == {
        *["log_prob_range", "prob_range", "certainty"]
    }
    status, out, err = run("compare", study, "--proxy", "certainity")
    assert (status, out) == (2, "")
    assert "did you mean 'certainty'" in err


def test_the_doctor_says_yes_and_no(run: Any, tmp_path: Path) -> None:
    status, out, _ = run("doctor", ENVIRONMENT, "--policy", POLICY, "--scores", "logits")
    assert status == 0
    assert "  ok      " in out
    assert "PROBLEM" not in out
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import gymnasium as gym, itertools\n"
        "count = itertools.count()\n"
        "class Bad(gym.Wrapper):\n"
        "    def step(self, action):\n"
        "        o, r, *rest = self.env.step(action)\n"
        "        return (o, r + next(count), *rest)\n"
        "def make():\n"
        "    return Bad(gym.make('CartPole-v1'))\n"
    )
    status, out, _ = run("doctor", f"{bad}:make")
    assert status == 1
    assert "PROBLEM" in out
    status, out, err = run(
        *["collect", f"{bad}:make", f"{WORLDS}:lean", "-o", tmp_path / "study"],
        *["--scores", "logits"],
    )
    assert status == 1
    assert err.count("\n") == 1
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["doctor", "CartPole-v1", "--seed", "-1"], "a seed of at least 0, got -1"),
        (["status", "TMP/nowhere"], "there is no study in"),
        (["fit", "TMP/nowhere"], "there is no study in"),
        (["margin", "TMP/none.json", "--proxy", "1", "--tolerance", "1"], "does not exist; fit"),
        (["margin", "MARGINS", "--proxy", "1", "--tolerance", "-1"], "tolerance must be at least"),
        (["status", "MARGINS"], "that is a file; name the folder that `safemargin collect"),
        (["gate", "STUDY", "--baseline", "STUDY", "--error-rate", "2"], "--error-rate must lie"),
        (["gate", "STUDY", "--baseline", "STUDY", "--call-at", "0"], "--call-at must be at least"),
        (
            ["collect", "CartPole-v1", "zoo:cartpole", "-o", "TMP/s", "--gpus-per-worker", "1"],
            "--gpus-per-worker is for engine 'ray'",
        ),
        (
            ["collect", "CartPole-v1", "zoo:cartpole", "-o", "TMP/s", "--signal", "cost"],
            "the info of step 1 has no 'cost'; it holds nothing; name one as cost:KEY",
        ),
        (["margin", "MARGINS", "--proxy", "nan", "--tolerance", "1"], "proxy must be a number"),
        (["margin", "HALF", "--proxy", "1", "--tolerance", "1"], "is not valid JSON"),
        (["margin", "MARGINS", "--proxy", "1e9", "--tolerance", "1", "--above", "error"], "above"),
        (["fit", "STUDY", "--confidence", "1.5"], "confidence must"),
        (["fit", "STUDY", "--proxy", "q_range"], "the study has no proxy 'q_range'"),
        (["fit", "STUDY", "--method", "papr"], "did you mean 'paper'"),
        (["fit", "STUDY", "-o", "TMP/no/such/m.json"], "cannot be written"),
        (["collect", ENVIRONMENT, "TMP/none.onnx", "-o", "TMP/s"], "there is no such file"),
        (["collect", ENVIRONMENT, POLICY, "-o", "TMP/s"], "--scores q or --scores logits"),
        (
            ["collect", "CartPole-v1", "zoo:cartpole", "-o", "TMP/s", "--gamma", "2"],
            "gamma must lie between 0 and 1",
        ),
        (
            ["collect", "CartPole-v1", "zoo:cartpole", "-o", "TMP/s", "--env-arg", "x"],
            "must look like NAME=VALUE",
        ),
        (["collect", "Acrobot-v1", "zoo:cartpole", "-o", "TMP/s"], r"shape \[4\], got .*\[6\]"),
        (["collect", ENVIRONMENT, POLICY, "--scores", "logits", "-o", "STUDY"], "other settings"),
        (["export", "STUDY", "-o", "TMP/t.xls"], r"\.csv or \.parquet"),
        (
            ["export", "STUDY", "-o", "TMP/t.csv", "--steps", "--episodes", "0"],
            "the steps of at least 1 episode can be exported, got 0",
        ),
        (
            ["export", "STUDY", "-o", "TMP/t.csv", "--steps", "--episodes", "-3"],
            "the steps of at least 1 episode can be exported, got -3",
        ),
        (["explore", "STUDY", "--port", "99999"], "a port is 0 .* to 65535, got 99999"),
        (["explore", "STUDY", "--port", "0", "--seed", "-4"], "a seed is 0 or more, got -4"),
    ],
)
def test_wrong_things_get_one_sentence_and_status_two(
    run: Any, study: Path, margins_file: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "half.json").write_bytes(margins_file.read_bytes()[:500])
    paths = {
        "STUDY": str(study),
        "MARGINS": str(margins_file),
        "HALF": str(tmp_path / "half.json"),
    }
    before = (study / DATABASE).read_bytes()
    status, out, err = run(
        *(paths.get(word, word.replace("TMP", str(tmp_path))) for word in arguments)
    )
    assert status == 2, err
    assert out == ""
    assert err.startswith("safemargin: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert (study / DATABASE).read_bytes() == before
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("array", "command"),
    [
        ("episode_proxies.proxies", "status STUDY"),
        ("episode_proxies.proxies", "fit STUDY -o OUT.json"),
        ("episode_proxies.proxies", "highlights STUDY -o OUT"),
        ("episode_proxies.proxies", "simulate-oversight STUDY --budget 0.5"),
        ("episode_proxies.proxies", "export STUDY -o OUT.csv --steps"),
        ("episodes.rewards", "simulate-oversight STUDY --budget 0.5"),
        ("episodes.rewards", "export STUDY -o OUT.csv --steps"),
        ("estimates.perturbed_returns", "fit STUDY -o OUT.json --estimand single-run"),
    ],
)
def test_a_flipped_byte_in_an_array_is_one_sentence(
    run: Any, study: Path, tmp_path: Path, array: str, command: str
) -> None:
    table, column = array.split(".")
    shutil.copytree(study, tmp_path / "study")
    with sqlite3.connect(tmp_path / "study" / DATABASE) as database:
        database.create_function("flipped", 1, lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]))
        database.execute(f"UPDATE {table} SET {column} = flipped({column})")
    database.close()
    paths = {"STUDY": str(tmp_path / "study")}
    words = [
        paths.get(word, word.replace("OUT", str(tmp_path / "out"))) for word in command.split()
    ]
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert re.fullmatch(
        r"safemargin: an array in the study's database is damaged \(.*\); "
        r"restore study.db from a copy\n",
        err,
    ), err


def test_errors_as_json(run: Any, tmp_path: Path) -> None:
    status, out, err = run("status", tmp_path, "--json")
    assert status == 2
    assert json.loads(out)["kind"] == "StudyError"
    assert "there is no study" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which command? `safemargin --help` lists them all"),
        (["fly"], 'unknown command "fly". See `safemargin --help`.'),
        (["--jsn", "status"], "the command comes before its options, got '--jsn' first"),
        (["colect", "a", "b"], 'Did you mean "collect"?'),
        (["collect"], "ENV is missing. See `safemargin collect --help`."),
        (["collect", "a", "b"], "--output is missing."),
        (["fit", "a", "b"], "unexpected argument 'b'."),
        (["fit", "a", "-o"], "-o needs a value."),
        (["fit", "a", "--toleranc", "1"], "--toleranc. Did you mean --tolerance?"),
        (["fit", "a", "--tolerance", "1,x"], "'1,x' must be comma-separated numbers"),
        (["fit", "a", "--estimand", "median"], 'Choose from: "mean", "single-run", "p90"'),
        (["collect", "a", "b", "-o", "c", "--n", "1,x"], "must be comma-separated whole numbers"),
        (["collect", "a", "b", "-o", "c", "--natural", "2.7"], "'2.7' is not a whole number."),
        (["collect", "a", "b", "-o", "c", "--gamma", "x"], 'unable to convert "x" into float.'),
        (["collect", "a", "b", "-o", "c", "--trial-plan", "papr"], 'Did you mean "paper"?'),
        (["explore", "a", "--episode", "1", "--seed", "2"], "--episode and --seed exclude"),
        (["zoo", "show"], "zoo show needs the NAME of an agent"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_two(
    run: Any, arguments: list[str], message: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("safemargin: ")
    assert err.count("\n") == 1
    assert message in err
    if arguments:
        status, out, said = run(*arguments, "--json")
        assert status == 2
        assert json.loads(out)["error"] in said
        assert json.loads(out)["kind"] == "InvalidInput"


COMMANDS = {
    *["doctor", "collect", "status", "fit", "margin", "validate", "compare", "plot", "export"],
    *["report", "explore", "highlights", "simulate-oversight", "watch", "audit", "reproduce"],
    *["zoo", "demo", "learn", "gate", "trace", "completion", "fidelity"],
    *["attack", "log"],
}


def test_help_lists_every_command(run: Any) -> None:
    assert {name for name in app if not name.startswith("-")} == COMMANDS
    status, out, _ = run("--help")
    assert status == 0
    for name in COMMANDS:
        assert f"│ {name} " in out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_explains_every_option(run: Any, command: str) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0
    assert "--json" in out
    every = app[command].assemble_argument_collection(parse_docstring=True)
    # "*" is a record of options; some of its fields may be options of the command itself.
    arguments = [each for each in every if each.name != "*" and each.parameter.parse is not False]
    assert arguments
    for argument in arguments:
        assert argument.parameter.help, argument.name
        assert argument.name in out


def test_every_setting_is_an_option_of_collect() -> None:
    options = app["collect"].assemble_argument_collection()
    names = {name for argument in options for name in argument.names}
    expected = {"--" + field.name.replace("_", "-") for field in fields(Settings)}
    assert expected - {"--n-values"} | {"--n"} <= names


@pytest.mark.skipif(shutil.which("bash") is None, reason="completes in bash")
def test_the_tab_key_completes_in_bash(run: Any, tmp_path: Path) -> None:
    status, script, _ = run("completion", "bash")
    assert status == 0
    (tmp_path / "script").write_text(script)
    for words, found in (
        ("fi", "fidelity fit"),
        ("fit x --toler", "--tolerance"),
        ("ex", "explore export"),
    ):
        typed = f"COMP_WORDS=(safemargin {words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))"
        code = f"source {tmp_path}/script; {typed}; _safemargin; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
        assert sorted(done.stdout.split()) == found.split(), done
    for shell in ("zsh", "fish"):
        assert json.loads(run("completion", shell, "--json")[1])["shell"] == shell


def test_version(run: Any) -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


def test_options_stand_anywhere_and_the_last_one_counts(
    run: Any, study: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    options = ["-o", first, "--confidence=0.5", "--json", f"-o{second}"]
    status, out, _ = run("fit", *options, study, "--confidence", "0.9")
    assert status == 0
    assert json.loads(out)["confidence"] == 0.9
    assert second.exists()
    assert not first.exists()


def test_settings_may_be_negative(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "study"
    plan = ["--trial-plan", "anytime", "--smallest-loss", "-3", "--largest-loss", "4"]
    status, out, err = run(
        *["collect", ENVIRONMENT, POLICY, "-o", path, "--scores", "logits", "--workers", "1"],
        *["--natural", "1", "--spread", "0", "--n", "1", *plan, "--json"],
    )
    assert status == 0, err
    assert json.loads(out)["settings"]["smallest_loss"] == -3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--n", "4,2"], "--n must be increasing whole numbers, starting at 1 or above, got [4"),
        (["--trials", "0"], "--trials must be at least 2, got 0"),
        (
            ["--trial-plan", "paper", "--trials", "9"],
            "--trials has a meaning only with --trial-plan fixed, not 'paper'",
        ),
        (
            ["--min-trials", "3"],
            "--min-trials has no meaning with --trial-plan fixed; set --trials, or take "
            "--trial-plan paper",
        ),
        (["--epsilon", "0.1"], "--epsilon has a meaning only with --action-choice epsilon-greedy"),
        (["--gamma", "0.5", "--n", "64"], "7 steps that --gamma and --horizon-error give; take"),
    ],
)
def test_wrong_settings_are_named_as_options(
    run: Any, tmp_path: Path, words: list[str], said: str
) -> None:
    status, _, err = run("collect", ENVIRONMENT, POLICY, "-o", tmp_path / "new", *words)
    assert status == 2
    assert err.startswith("safemargin: ")
    assert said in err
    assert "settings" not in err


def test_a_smaller_number_later_takes_nothing_away(run: Any, study: Path, tmp_path: Path) -> None:
    path = shutil.copytree(study, tmp_path / "study")
    status, out, err = run(*collect(path, "--natural", "5", "--spread", "12"))
    assert status == 0, err
    assert "natural      14 of 14 moments measured for every n" in out
    assert "left         nothing" in out


def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study"
    arguments = collect(path, "--workers", "2", environment=SLOW_ENVIRONMENT)
    command = [sys.executable, "-m", "safemargin", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=let_ctrl_c_through
    )
    wait_until(lambda: estimates_in(path) >= 5, "the study did not begin")
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command again to continue" in err
    assert 5 <= estimates_in(path) < 78
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    assert main(collect(tmp_path / "undisturbed", environment=SLOW_ENVIRONMENT)) == 0
    assert contents(path) == contents(tmp_path / "undisturbed")


def test_environment_arguments_are_read_as_people_write_them(run: Any, tmp_path: Path) -> None:
    for number, value in enumerate(["false", "False"]):
        path = tmp_path / str(number)
        status, out, err = run(
            *["collect", "FrozenLake-v1", f"{WORLDS}:go_right", "-o", path, "--scores", "q"],
            *["--env-arg", f"is_slippery={value}", "--env-arg", "map_name=8x8", "--n", "1"],
            *["--natural", "2", "--spread", "0", "--trials", "4", "--workers", "1"],
            *["--max-episode-steps", "2000"],
        )
        assert status == 0, err
        assert "FrozenLake-v1 (is_slippery=False, map_name=8x8)" in out


def test_infinity_is_written_as_text(run: Any, study: Path, tmp_path: Path) -> None:
    run("fit", study, "-o", tmp_path / "m.json")
    for words in (["--proxy", "0.1", "--tolerance", "inf"], ["--proxy", "inf", "--tolerance", "1"]):
        status, out, _ = run("margin", tmp_path / "m.json", *words, "--json")
        assert status == 0
        assert "inf" in json.loads(out).values()


def test_negative_and_small_proxies_are_values(run: Any, study: Path, tmp_path: Path) -> None:
    run("fit", study, "-o", tmp_path / "m.json", "--proxy", "certainty")
    status, out, _ = run("margin", tmp_path / "m.json", "--proxy", "-8e-05", "--tolerance", "1")
    assert status == 0
    assert out.strip().isdigit()
    status, _, err = run("margin", tmp_path / "m.json", "--proxy", "-1,-2e-3", "--tolerance", "1")
    assert status == 2
    assert "has one value, got [-1.0, -0.002]" in err


def test_an_answer_that_cannot_be_written(study: Path) -> None:
    command = [sys.executable, "-m", "safemargin", "status", str(study)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("safemargin: cannot write the answer")
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True
    )
    assert closed.returncode == 0
    assert closed.stderr == ""


def test_help_on_a_terminal_without_the_letters(study: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "safemargin", "collect", "--help"]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0
    assert b"discount factor ?" in done.stdout.lower()


def test_an_environment_that_exits_is_a_finding(run: Any, tmp_path: Path) -> None:
    leaving = tmp_path / "leaving.py"
    leaving.write_text(
        "import gymnasium as gym\n"
        "class Leaving(gym.Wrapper):\n"
        "    def step(self, action):\n"
        "        raise SystemExit(0)\n"
        "def make():\n"
        "    return Leaving(gym.make('CartPole-v1'))\n"
    )
    status, out, _ = run("doctor", f"{leaving}:make")
    assert status == 1
    assert "raised SystemExit: 0 (leaving.py, line 4)" in out


def test_code_that_exits_is_reported_in_one_sentence(run: Any, tmp_path: Path) -> None:
    leaves = tmp_path / "leaves.py"
    leaves.write_text("import sys\nsys.exit('bye')\n")
    agent = tmp_path / "leaving_agent.py"
    agent.write_text("import sys\ndef scores(observations):\n    sys.exit(3)\n")
    policy = ["--policy", f"{agent}:scores", "--scores", "q"]
    for arguments, said in (
        ([f"{leaves}:make"], "running the file failed: SystemExit: bye (leaves.py, line 2)"),
        (["CartPole-v1", *policy], "raised SystemExit: 3 (leaving_agent.py, line 3)"),
    ):
        status, out, err = run("doctor", *arguments, "--json")
        assert status == 2
        assert json.loads(out)["error"] in err
        assert said in err
        assert err.count("\n") == 1


def test_the_same_file_by_another_path_is_the_same_environment(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(WORLDS.parent)
    command = [
        "worlds.py:make_branching" if word == ENVIRONMENT else word for word in collect(study)
    ]
    assert main(command) == 0
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "elsewhere"
    link.symlink_to(WORLDS.parent)
    moved = f"{link}/worlds.py:make_branching"
    assert main([moved if word == ENVIRONMENT else word for word in collect(study)]) == 0


def test_a_refused_tolerance_writes_no_margins(
    drawn_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tolerance in ("-1", "nan"):
        file = tmp_path / "margins.json"
        assert main(["fit", str(drawn_study), "-o", str(file), "--tolerance", tolerance]) == 2
        assert "--tolerance must be at least 0" in capsys.readouterr().err
        assert not file.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", ""], "-o needs the name of a folder for the study"),
        (["-o", "study", "--plan-moments", "3"], "--plan-moments and --plan-seconds need --plan"),
    ],
)
def test_options_that_would_start_something_else(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "CartPole-v1", "zoo:cartpole", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--help"], ["zoo"]])
def test_a_reader_that_leaves_early_is_no_finding(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "safemargin", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()  # before it has written anything
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), said) == (0, b"")


def test_folders_above_the_output_are_made_with_a_word(
    run: Any, study: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "misspelt"
    note = f"note: the folder {parent} does not exist and will be made"
    options = ["--natural", "1", "--spread", "0"]
    status, _, err = run(*collect(parent / "study"), *options)
    assert (status, err.count(note)) == (0, 1)
    status, _, err = run(*collect(parent / "study"), *options)
    assert (status, note in err) == (0, False)
    deeper = parent / "one" / "two"
    status, _, err = run("plot", study, "-o", deeper / "figures")
    assert (status, err.count(f"the folder {deeper} does not exist")) == (0, 1)
    assert (deeper / "figures").is_dir()


@pytest.mark.parametrize("folder", ["new/study", "there"])
def test_a_refused_collect_leaves_nothing_new(run: Any, tmp_path: Path, folder: str) -> None:
    pytest.importorskip("jax", reason="needs safemargin[jax]")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    command = collect(tmp_path / folder)
    at = command.index("--workers")
    status, _, err = run(*command[:at], *command[at + 2 :], "--engine", "jax")
    assert status == 2
    assert "cannot run this study: it runs environments of pure functions" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_collect_keeps_what_there_was(run: Any, study: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs safemargin[jax]")
    path = tmp_path / "study"
    shutil.copytree(study, path)
    held = contents(path)
    command = collect(path)
    at = command.index("--workers")
    assert run(*command[:at], *command[at + 2 :], "--engine", "jax")[0] == 2
    assert contents(path) == held
