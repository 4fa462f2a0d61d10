"""Code runs only if the user named it: margins files and studies that come from elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.margins import margins
from helpers.paths import WORLDS

import safemargin as sm
from safemargin.cli import main
from safemargin.environments import EnvironmentSpec
from safemargin.errors import UntrustedCode
from safemargin.policies.proxies import PROXIES, default_proxy
from safemargin.study.provenance import source_text
from safemargin.study.signing import code_named
from safemargin.study.store import DATABASE, Store

ENVIRONMENT, POLICY = f"{WORLDS}:make_branching", f"{WORLDS}:always_first"
SETTINGS = {"n_values": (1, 2), "trials": 4}
LOADING = ["report", "explore", "highlights"]

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command that looks at a study; gives the status and what it says."""

    def run(command: str, study: Path, *more: str) -> tuple[int, str]:
        fresh = ["--seed", "3", "--port", "0", "--no-browser"]
        where = fresh if command == "explore" else ["-o", str(tmp_path / "out")]
        status = main([command, str(study), *where, *more])
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def study(drawn_study: Path, tmp_path: Path) -> Path:
    """A copy of the user's own study."""
    return Path(shutil.copytree(drawn_study, tmp_path / "study"))


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on another machine, or as another user."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))


def change(study: Path, entry: str, **values: Any) -> None:
    """Change an entry of a study, as anybody with an editor can."""
    with sqlite3.connect(study / DATABASE) as database:
        query = "SELECT value FROM meta WHERE name = ?"
        entries = json.loads(database.execute(query, [entry]).fetchone()[0]) | values
        database.execute("UPDATE meta SET value = ? WHERE name = ?", [json.dumps(entries), entry])
    database.close()


def refused(answer: tuple[int, str], code: str) -> bool:
    status, said = answer
    whole = said.startswith("safemargin: the study in ") and said.count("\n") == 1
    return status == 2 and whole and f"would run {code}, " in said and "add --trust" in said


def collected(folder: Path, **more: Any) -> Path:
    with sm.Study.create(folder, ENVIRONMENT, POLICY, SETTINGS, scores="logits", **more) as study:
        study.collect(2, 1, workers=1)
    return folder


# -- what is code --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["CartPole-v1", "ALE/Pong-v5", "atari:pong", "no.such:thing"])
def test_environments_that_are_code(text: str) -> None:
    spec = EnvironmentSpec.parse(text, {"mode": 1, "gain": 0.5, "flag": True})
    code = ["no.such:thing(mode=1, gain=0.5, flag=True)"] if "thing" in text else []
    assert code_named(spec) == code
    for value in ("x", None, [1], {"a": 1}):  # a text may name a file, or code
        spec = EnvironmentSpec.parse(text, {"mode": value})
        assert code_named(spec) == [f"{text}(mode={value!r})"]
    assert code_named(EnvironmentSpec.parse(f"a_module:{text}")) == [f"a_module:{text}()"]


def test_policies_and_proxies_that_are_code() -> None:
    for plain in ("zoo:cartpole", "agent.onnx", "/a/b/AGENT.ONNX", None):
        assert code_named(policy=plain) == []
    for code in ("m.zip", "sb3:ppo:m.zip", "a.py:f", "a.b:c", "sb3:x:m.onnx", "a.py:f.zip"):
        assert code_named(policy=code) == [code]
    assert code_named(policy="a:b\x1b[2K\n") == [r"'a:b\x1b[2K\n'"]
    assert code_named(proxies=[*PROXIES, "mine", "a.py:f", PROXIES["certainty"]]) == ["a.py:f"]


# -- files from elsewhere ------------------------------------------------------------------------


def test_a_margins_file_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    policy = sm.load_policy("zoo:cartpole")
    described = {"identity": policy.identity, "kind": policy.kind}
    table = margins(proxy=default_proxy(policy.kind), policy=described)
    touched, file = tmp_path / "touched", table.save(tmp_path / "evil.json")
    document = json.loads(file.read_text())
    watch = ["watch", "zoo:cartpole", str(file), "--log", str(tmp_path / "watch.db")]
    for name in ("subprocess:run", " subprocess:run ", f"{tmp_path / 'x.py'}:run", "a:Id-v0"):
        arguments = {"args": ["touch", str(touched)]}
        document["environment"] = {"name": name, "arguments": arguments}
        file.write_text(json.dumps(document))
        assert main(watch) == 2
        said = capsys.readouterr().err
        assert f"names code as its environment, {name.strip()}(args=['touch'" in said
        assert "name it with --env" in said
        assert said.count("\n") == 1
        assert not touched.exists()
    document["environment"] = {"name": "Ant-v5", "arguments": {"xml_file": "/evil.xml"}}
    file.write_text(json.dumps(document))
    assert main(watch) == 2
    said = capsys.readouterr().err
    assert "gives its environment more than numbers, Ant-v5(xml_file='/evil.xml'), and" in said
    document["environment"] = {"name": "CartPole-v1", "arguments": "x"}
    file.write_text(json.dumps(document))
    assert main(watch) == 2
    assert "arguments must be a mapping of names to values, got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("command", LOADING)
def test_a_study_with_a_foreign_environment_runs_nothing(
    command: str, study: Path, run: Run, tmp_path: Path
) -> None:
    create_app = pytest.importorskip("safemargin.web.explorer").create_app
    touched = tmp_path / "touched"
    arguments = {"args": ["touch", str(touched)]}
    change(study, "environment", spec=json.dumps({"env": "subprocess:run", "arguments": arguments}))
    code = f"subprocess:run(args={arguments['args']!r})"
    named = f"{code}, {WORLDS}:always_first" if command == "explore" else code
    assert refused(run(command, study), named)
    assert not touched.exists()
    with sm.Study.open(study) as opened:
        for load in (opened.job, lambda: opened.environment_spec, lambda: create_app(opened)):
            with pytest.raises(UntrustedCode, match=r"would run subprocess:run\(args"):
                load()
        assert opened.status().moments  # what loads no code still works
    assert not touched.exists()


def test_a_study_with_a_foreign_policy_or_proxy_runs_nothing(study: Path, tmp_path: Path) -> None:
    touched, evil = tmp_path / "touched", tmp_path / "evil.py"
    evil.write_text(f"open({str(touched)!r}, 'w').close()\n")
    change(study, "policy", source=f"{evil}:agent")
    given = {"env": f"{WORLDS}:make_drawn"}
    with (
        sm.Study.open(study, **given) as opened,
        pytest.raises(UntrustedCode, match=rf"would run {evil}:agent, and is"),
    ):
        opened.job()
    given["policy"] = f"{WORLDS}:always_first"
    with sqlite3.connect(study / DATABASE) as database:
        entry = json.dumps([f"{evil}:proxy"])
        database.execute("UPDATE meta SET value = ? WHERE name = 'extra_proxies'", [entry])
    database.close()
    with (
        sm.Study.open(study, **given) as opened,
        pytest.raises(UntrustedCode, match=rf"would run {evil}:proxy, and is"),
    ):
        opened.job()
    assert not touched.exists()


# -- one's own study, and the same one elsewhere -------------------------------------------------


def test_a_study_of_ones_own_needs_no_trust_and_elsewhere_it_does(
    study: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_key: Path
) -> None:
    assert run("report", study, "--top", "1")[0] == 0
    if sys.platform != "win32":
        assert stat.S_IMODE(own_key.stat().st_mode) == 0o600
    elsewhere(monkeypatch, tmp_path)
    (tmp_path / "out").unlink()
    environment = f"{WORLDS}:make_drawn()"
    assert refused(run("report", study), environment)
    assert refused(run("highlights", study), environment)
    assert not (tmp_path / "out").exists()
    assert main(["status", str(study)]) == 0
    assert main(["fit", str(study), "-o", str(tmp_path / "margins.json")]) == 0
    assert run("report", study, "--top", "1", "--trust")[0] == 0
    assert (tmp_path / "out").exists()
    assert not (tmp_path / "other").exists()  # looking makes no key


def test_trust_in_python(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sm.Study.open(study) as opened:
        assert opened.job().policy.description == f"{WORLDS}:always_first"
    elsewhere(monkeypatch, tmp_path)
    with sm.Study.open(study) as opened, pytest.raises(UntrustedCode, match="trust=True"):
        opened.job()
    with sm.Study.open(study, trust=True) as opened:
        assert opened.job().policy.description == f"{WORLDS}:always_first"


def test_a_changed_argument_breaks_the_signature(study: Path) -> None:
    spec = {"env": f"{WORLDS}:make_drawn", "arguments": {"render_mode": None}}
    change(study, "environment", spec=json.dumps(spec))
    with (
        sm.Study.open(study) as opened,
        pytest.raises(UntrustedCode, match=r"make_drawn\(render_mode=None\)"),
    ):
        opened.job()


def test_plain_studies_are_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, tmp_path)
    arguments = {"max_episode_steps": 20}
    with sm.Study.create(
        tmp_path / "study", "CartPole-v1", "zoo:cartpole", SETTINGS, env_arguments=arguments
    ) as study:
        assert study.store.meta("signature") is None
    assert not (tmp_path / "other").exists()
    with sm.Study.open(tmp_path / "study") as study:
        assert study.job().environment.arguments == arguments


def test_a_plain_environment_with_a_text_needs_a_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"render_mode": "rgb_array"}
    with sm.Study.create(
        tmp_path / "study", "CartPole-v1", "zoo:cartpole", SETTINGS, env_arguments=arguments
    ) as study:
        assert isinstance(study.store.meta("signature"), str)
    with sm.Study.open(tmp_path / "study") as study:
        assert study.environment_spec.arguments == arguments  # one's own
    elsewhere(monkeypatch, tmp_path)
    said = r"would run CartPole-v1\(render_mode='rgb_array'\), and is not signed by you"
    with sm.Study.open(tmp_path / "study") as study, pytest.raises(UntrustedCode, match=said):
        study.job()
    with sm.Study.open(tmp_path / "study", trust=True) as study:
        assert study.environment_spec.arguments == arguments


def test_going_on_signs_what_was_named_now_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = collected(tmp_path / "study")
    change(folder, "policy", source="evil.py:agent")
    elsewhere(monkeypatch, tmp_path)
    with sm.Study.create(folder, ENVIRONMENT, POLICY, SETTINGS, scores="logits"):
        pass  # e.g. for a plan, which writes nothing
    with sm.Study.open(folder) as study, pytest.raises(UntrustedCode, match=r"evil\.py:agent"):
        study.job()
    collected(folder)
    with sm.Study.open(folder) as study:
        assert study.policy["source"] == POLICY
        assert study.job().environment.text == ENVIRONMENT


def test_proxies_and_models_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("def ones(scores, history, n):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    folder = collected(tmp_path / "study", proxies=["own.py:ones"])
    (tmp_path / "model.zip").write_text("")
    assert source_text("sb3:ppo:model.zip") == f"sb3:ppo:{tmp_path.resolve() / 'model.zip'}"
    assert source_text("zoo:cartpole") == "zoo:cartpole"
    monkeypatch.chdir(WORLDS.parent)
    with sm.Study.open(folder) as study:
        assert [proxy.name for proxy in study.job().proxies][-1] == "ones"


# -- the key -------------------------------------------------------------------------------------


def test_without_a_key_studies_are_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))  # no folder can be made there
    folder = collected(tmp_path / "study")
    with sm.Study.open(folder) as study, pytest.raises(UntrustedCode, match="add --trust"):
        study.job()
    with sm.Study.open(folder, env=ENVIRONMENT, policy=POLICY) as study:
        assert study.job()
    monkeypatch.delenv("XDG_DATA_HOME")

    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where there is no home
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with sm.Study.open(folder) as study, pytest.raises(UntrustedCode, match="add --trust"):
        study.job()
    assert not (tmp_path / "~").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG's folders")
def test_the_key_lies_in_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    collected(tmp_path / "study")
    key = tmp_path / ".local" / "share" / "safemargin" / "key"
    assert len(key.read_bytes()) == 32
    assert os.listdir(key.parent) == ["key"]
    signed = Store.open(tmp_path / "study").meta("signature")
    key.write_bytes(b"")  # anybody could sign with it
    with (
        sm.Study.open(tmp_path / "study") as study,
        pytest.raises(UntrustedCode, match="add --trust"),
    ):
        study.job()
    collected(tmp_path / "study")  # resumes all the same
    assert signed
