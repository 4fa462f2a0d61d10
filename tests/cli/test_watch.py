"""`safemargin watch`: agents that run beside the server, and one sentence for everything wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.margins import margins, own_margins
from helpers.paths import ROOT, WORLDS
from helpers.worlds import (
    TableWorld,
    always_first,
    chain,
    make_drawn,
    make_from_seven,
)

import safemargin as sm
from safemargin.cli import main
from safemargin.cli.fleet import _monitors
from safemargin.cli.watch import CallOptions
from safemargin.environments import EnvironmentSpec
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.seals import check_anchors
from safemargin.validation.defaults import default_tolerance
from safemargin.web.fleet import Fleet
from safemargin.web.fleet.local import Crew, LocalAgents

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from helpers.fleet_server import TOKEN, Person, running


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sm.AuditLog]:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as opened:
        yield opened


def crew(environment: Callable[..., gym.Env[Any, Any]], **changes: Any) -> Crew:
    policy = sm.load_policy(changes.pop("policy", always_first), kind="logits")
    watch = changes.pop("watch", {})

    def make() -> Monitor:
        return Monitor(own_margins(), **{"tolerance": 1.0, "call_at": 2, **watch})

    values = {"agents": 2, "speed": 500.0, **changes}
    return Crew(EnvironmentSpec.parse(environment), policy, make, **values)


def lead(fleet: Fleet, agents: Crew, *moments: Callable[[], Any]) -> None:
    """Run a crew; each moment is asked until it is true, then comes the next."""

    async def run() -> None:
        local = LocalAgents(fleet, agents)
        local.start(asyncio.get_running_loop())
        try:
            for number, moment in enumerate(moments):
                for _ in range(3000):
                    if moment():
                        break
                    await asyncio.sleep(0.01)
                else:
                    reasons = [agent.reason for agent in fleet.agents]
                    pytest.fail(f"waited in vain for moment {number}: {reasons}")
        finally:
            await asyncio.to_thread(local.stop)
            await asyncio.sleep(0.05)

    asyncio.run(run())


def kinds(log: sm.AuditLog, agent: str) -> list[str]:
    return [entry.kind for entry in log.entries(agent=agent)]


class Breaks(TableWorld):
    """The last of four that are made breaks: two agents each make one to draw, and one more."""

    made = 0

    def __init__(self) -> None:
        super().__init__(chain(6))
        Breaks.made += 1
        self.number = Breaks.made

    def step(self, action: int) -> Any:
        if self.number == 4 and self.state == 3:
            raise RuntimeError("a wheel came off")
        return super().step(action)


def test_an_agent_that_breaks_harms_no_other(log: sm.AuditLog) -> None:
    fleet = Fleet(log)

    def one_died() -> bool:
        return sorted(agent.status for agent in fleet.agents) == ["died", "live"]

    def other_goes_on() -> bool:
        live = next(agent for agent in fleet.agents if agent.status == "live")
        return live.report is not None and live.report.episode > 3

    Breaks.made = 0
    lead(fleet, crew(Breaks), one_died, other_goes_on)
    died = next(agent for agent in fleet.agents if agent.status == "died")
    assert "a wheel came off" in died.reason
    assert kinds(log, died.name)[-2:] in (["died", "release"], ["release", "died"])
    assert {agent.status for agent in fleet.agents} == {"died", "left"}


def test_calls_episodes_and_no_pictures(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    lead(
        fleet,
        crew(lambda: TableWorld(chain(6)), agents=1),
        lambda: fleet.agents and fleet.agents[0].track.count > 20,
    )
    agent = fleet.agents[0]
    kept = agent.track.last(12)
    start = kept["steps"].index(0)
    assert kept["steps"][start : start + 6] == [0, 1, 2, 3, 4, 5]
    assert kept["margins"][start : start + 6] == [2, 1, 0, 0, 0, 0]
    assert agent.picture is None
    assert kinds(log, agent.name)[:4] == ["joined", "call", "release", "call"]
    assert kinds(log, agent.name)[-1] in ("left", "release")


def test_actions_that_do_not_begin_at_0(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    lead(
        fleet,
        crew(make_from_seven, agents=1),
        lambda: fleet.agents and "call" in kinds(log, fleet.agents[0].name),
    )
    assert fleet.agents[0].hello.action_names == ("action 7", "action 8")
    call = next(entry for entry in log.entries(agent=fleet.agents[0].name) if entry.kind == "call")
    told = {name: call.details[name] for name in ("first_action", "proposed", "proposed_name")}
    assert told == {"first_action": 7, "proposed": 7, "proposed_name": "action 7"}


def test_an_agent_that_calls_waits_for_somebody(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    ann = fleet.arrive("the secret of Ann", "Ann")
    found: dict[str, Any] = {}

    def calls() -> bool:
        return bool(fleet.agents) and fleet.agents[0].calling

    def take() -> bool:
        found["step"] = fleet.agents[0].report.step  # type: ignore[union-attr]
        fleet.control.take(ann, fleet.agents[0])
        return True

    def asks() -> bool:
        return fleet.agents[0].waiting

    def act() -> bool:
        agent = fleet.agents[0]
        assert agent.report is not None
        assert agent.report.step == found["step"]  # it stood still meanwhile
        fleet.control.act(ann, agent, agent.report.episode, agent.report.step, 1)  # ends the walk
        return True

    def next_episode() -> bool:
        return fleet.agents[0].report.episode == 1  # type: ignore[union-attr]

    world = crew(lambda: TableWorld(chain(6)), agents=1, wait=30.0)
    lead(fleet, world, calls, take, asks, act, next_episode)
    action = next(entry for entry in log if entry.kind == "action")
    assert (action.step, action.details["overruled"]) == (1, True)


def test_pictures_are_drawn_for_who_looks(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    lead(fleet, crew(make_drawn, agents=1, watch={"call_at": 1}), lambda: len(log) > 4)
    first = next(entry for entry in log if entry.kind == "call")
    assert first.pictured  # a call always brings one
    kept = log.picture(first.id)
    assert kept is not None
    assert kept[:3] == b"\xff\xd8\xff"


class Slider(gym.Env[Any, Any]):
    """Continuous actions; remembers the last."""

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    last: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        Slider.last = action
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_continuous_actions_can_be_steered(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    ann = fleet.arrive("the secret of Ann", "Ann")
    policy = sm.load_policy(
        lambda observations: np.full((len(observations), 2), 0.5), kind="actions"
    )

    def make() -> Monitor:
        table = margins(proxy="log_prob_range", policy={"kind": "actions"})
        return Monitor(table, tolerance=1.0)

    world = Crew(EnvironmentSpec.parse(Slider), policy, make, agents=1, speed=500.0)

    def take() -> bool:
        fleet.control.take(ann, fleet.agents[0])
        return True

    def act() -> bool:
        agent, report = fleet.agents[0], fleet.agents[0].report
        assert report is not None
        assert report.proposed == [0.5, 0.5]
        with pytest.raises(sm.SafemarginError, match="agent 1 is a list of 2 finite numbers"):
            fleet.control.act(ann, agent, report.episode, report.step, [1.0])
        fleet.control.act(ann, agent, report.episode, report.step, [-1.0, 0.25])
        return True

    lead(
        fleet,
        world,
        lambda: fleet.agents and fleet.agents[0].report,
        take,
        lambda: fleet.agents[0].waiting,
        act,
        lambda: fleet.agents[0].waiting,
    )
    assert Slider.last.tolist() == [-1.0, 0.25]
    assert Slider.last.dtype == np.float32


# -- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def margins_file(drawn_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("margins") / "margins.json"
    assert main(["fit", str(drawn_study), "-o", str(path)]) == 0
    return path


def test_from_start_to_ctrl_c(margins_file: Path, tmp_path: Path) -> None:
    policy = [f"{WORLDS}:always_first", str(margins_file), "--scores", "logits"]
    policy += ["--env", f"{WORLDS}:make_drawn"]  # a margins file can never execute code
    policy += ["--anchor", str(tmp_path / "anchors")]
    with running(tmp_path, *policy, "--agents", "2", "--speed", "50") as server:
        with Person(server.address, "Ann") as ann:
            seen: set[int] = set()
            while len(seen) < 2:
                seen |= {row[0] for row in ann.hear("decisions")["rows"]}
            assert ann.fleet["about"]["environment"].endswith("make_drawn")
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=120)
        assert server.process.returncode == 0
    with sm.AuditLog(tmp_path / "watch.db") as log:
        log.check()
        assert kinds(log, "agent 1")[0] == "joined"
        assert "left" in kinds(log, "agent 1")
        last = list(log)[-1]
        assert last.kind == "server-stopped"
        assert log.sealed == "yours"
        assert check_anchors(log, tmp_path / "anchors") == last.id


def test_an_unsealed_log_is_said_to_be_one(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "watch.db", tmp_path)
    said = tmp_path / "said"
    with said.open("w") as errors, running(tmp_path, stderr=errors):
        pass
    assert "watch.db was begun without a key and is continued without" in said.read_text()


def opens(address: str, token: str) -> int:
    """The answer's status to somebody who comes with a token for the page."""
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any) -> None: ...

    with pytest.raises(HTTPError) as answer:
        build_opener(Stay()).open(f"{address}?token={token}")
    answer.value.close()
    return answer.value.code


def test_nothing_that_an_agent_knows_opens_the_page(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with running(tmp_path, "--remote", "--host", "0.0.0.0") as server:
            found.append(server.address.partition("?token=")[2])
            local = f"http://127.0.0.1:{server.port}/"
            assert opens(server.address.partition("?")[0], found[-1]) == 303  # the printed link
            assert opens(local, found[-1]) == 303  # to the page, without a token in sight
            for prefix in (b"", b"safemargin people ", b"safemargin person "):
                known = hashlib.sha256(prefix + TOKEN.encode()).hexdigest()
                for guess in (TOKEN.replace(" ", "+"), known, known[:32]):
                    assert opens(local, guess) == 401
    assert found[0] == found[1]  # the same after a restart
    kept = tmp_path / "watch.db-page-token"
    assert kept.read_text().strip() == found[0]
    assert kept.stat().st_mode & 0o077 == 0


def test_people_who_cannot_be_told(tmp_path: Path) -> None:
    failing = ["--webhook", "http://127.0.0.1:9", "--run", f"{sys.executable} -c 'exit(3)'"]
    said = tmp_path / "said"
    with said.open("w") as errors, running(tmp_path, "--remote", *failing, stderr=errors) as server:
        with (
            Person(server.address, "Ann") as ann,
            sm.RemoteOverseer(server.address, name="arm", token=TOKEN) as agent,
        ):
            assert ann.fleet["about"]["notify_fault"] == ""
            monitor = sm.Monitor(margins(), tolerance=1.0, call_at=2)
            agent.decide(0, decision=monitor.step(np.array([0.0, 9.0])))
            told = ann.hear("faults", lambda message: " and " in message["notify_fault"])
            assert told["notify_fault"] == "the webhook and the command fail"
        with Person(server.address, "Ben") as ben:
            assert ben.fleet["about"]["notify_fault"] == "the webhook and the command fail"
        server.stop()
    printed = said.read_text()
    assert "safemargin: the webhook failed: URLError" in printed
    assert "safemargin: the command failed: CalledProcessError" in printed
    assert "the webhook failed for 1 of 1 messages; the last: URLError" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "watch needs a policy and its margins file"),
        (["zoo:cartpole"], "watch needs a policy and its margins file"),
        (["--remote", "P", "M"], "with --remote, watch takes a margins file only"),
        (["--remote", "--agents", "3"], "--agents needs a policy and its margins file"),
        (["P", "M", "--agents", "0"], "--agents must be 1 to 500, got 0"),
        (["P", "M", "--speed", "0"], "--speed must be 0.01 to 1000 decisions a second"),
        (["P", "M", "--grace", "-1"], "--grace must be at least 0 s"),
        (["P", "M", "--wait", "-1"], "--wait must be 0 to 3600 s"),
        (["P", "M", "--seed", "-1"], "--seed must be at least 0"),
        (["P", "M", "--env-arg", "x=1"], "--env-arg gives arguments to the environment of --env"),
        (
            ["--remote", "--budget", "20"],
            "got '20', which is above 1; 20 calls an hour are 20/hour",
        ),
        (["--remote", "--budget", "20/day"], "0.05 (a share of decisions) or 20/hour (calls an"),
        (["--remote", "--budget", "0/hour"], "the budget must be above 0"),
        (["--remote", "--budget", "1/hour", "--looks", "1/hour"], "1/hour cannot be kept: random"),
        (["--remote", "--budget", "1/hour", "--looks", "0.1"], "must have the unit of the budget"),
        (
            ["--remote", "--budget", "0.1", "--call-at", "2"],
            "adapts to the budget; leave --call-at",
        ),
        (["--remote", "--looks", "1/hour"], "random looks are a part of a budget; give one, like"),
        (["--remote", "--call-length", "-1"], "length and gap must be at least 0 s, got -1.0 and"),
        (["--remote", "--stuck-after", "-1"], "--stuck-after must be at least 0 s, got -1.0"),
        (["--remote", "--webhook", "x"], "a webhook needs an http:// or https:// address"),
        (["--remote", "--webhook", "http://[x"], "a webhook needs an http:// or https:// address"),
        (["--remote", "--webhook", "http://x:99999"], "a webhook needs an http:// or https://"),
        (["--remote", "--run", ""], "a command is a list of arguments"),
        (["--remote", "--run", "echo 'x"], "--run cannot be read: No closing quotation"),
        (["--remote", "--run", "/no/such/command x"], "there is no command '/no/such/command'"),
        (
            ["--remote", "--anchor", "/no/such/file"],
            "an anchor is a file in an existing folder, or",
        ),
        (["--replay", "none.db"], "there is no audit log none.db"),
        (["--replay", "none.db", "--remote"], "--replay shows a log and runs no agents"),
        (["--replay", "none.db", "-o", "replay.html"], "there is no audit log none.db"),
        (["--remote", "-o", "replay.html"], "--output writes a replay; name its log with --replay"),
        (["zoo:cartpole", "none.json"], "none.json"),
    ],
)
def test_one_sentence_for_everything_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.startswith("safemargin: ")
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_margins_of_another_policy_or_environment(
    margins_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = ["--log", str(tmp_path / "watch.db")]
    assert main(["watch", "zoo:cartpole", str(margins_file), *log]) == 2
    assert "the margins were made for another policy" in capsys.readouterr().err
    policy = [f"{WORLDS}:always_first", str(margins_file), "--scores", "logits"]
    other = ["--env", f"{WORLDS}:make_branching"]
    assert main(["watch", *policy, *other, *log]) == 2
    assert "the margins were made for another environment" in capsys.readouterr().err
    nameless = tmp_path / "nameless.json"
    told = json.loads(margins_file.read_text())
    told["environment"] = {}
    nameless.write_text(json.dumps(told))
    assert main(["watch", policy[0], str(nameless), *policy[2:], *log]) == 2
    assert "name it with --env" in capsys.readouterr().err


def test_a_budget_that_so_few_agents_cannot_spend(
    margins_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = [f"{WORLDS}:always_first", str(margins_file), "--scores", "logits"]
    policy += ["--env", f"{WORLDS}:make_drawn", "--log", str(tmp_path / "watch.db")]
    assert main(["watch", *policy, "--agents", "2", "--budget", "5000/hour"]) == 2
    assert (
        "a budget of 5000/hour cannot be spent: with calls of at least 3 s and 2 s between them, 2 "
        "agents make at most 1,440 an hour"
    ) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "told", "floods"),
    [
        ([], r"note: expect about .* calls an hour.* \([\d,]+ decisions rehearsed by one agent\)\. "
             "Nobody can answer that: with --budget 20/hour", True),
        (["--budget", "20/hour"], "note: expect about 20 calls an hour of 3.7 s, at least 2.06 % "
             "of one person's time", False),
    ],
)  # fmt: skip
def test_what_to_expect_is_said_before_it_starts(
    margins_file: Path, tmp_path: Path, options: list[str], told: str, floods: bool
) -> None:
    policy = [f"{WORLDS}:always_first", str(margins_file), "--scores", "logits"]
    policy += ["--env", f"{WORLDS}:make_drawn", "--agents", "2", "--tolerance", "0"]
    kept = tmp_path / "said"
    with kept.open("w") as errors, running(tmp_path, *policy, *options, stderr=errors) as server:
        with Person(server.address, "Ann") as ann:
            assert ann.fleet["about"]["floods"] is floods
            assert ("budget" in ann.fleet["about"]) is bool(options)
        server.stop()
    assert re.search(told, kept.read_text())


def test_two_servers_do_not_share_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sm.AuditLog(tmp_path / "watch.db", write=True):
        assert main(["watch", "--remote", "--log", str(tmp_path / "watch.db")]) == 2
    assert "another server writes to" in capsys.readouterr().err


def test_refused_starts_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAFEMARGIN_TOKEN", raising=False)
    start = ["watch", "--remote", "--no-browser"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main([*start, "--port", port, "--log", str(tmp_path / "g.db")]) == 2
    assert "is in use" in capsys.readouterr().err
    token = ["--token-file", str(tmp_path / "none"), "--log", str(tmp_path / "g.db")]
    assert main([*start, "--port", "0", *token]) == 2
    assert "none" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    text = tmp_path / "README.md"
    text.write_text("# not a log\n" * 100)
    assert main([*start, "--port", "0", "--log", str(text)]) == 2
    assert "cannot be read as an audit log" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [text]
    assert main([*start, "--port", "0", "--log", "/proc/x.db"]) == 2
    assert "the log /proc/x.db cannot be written" in capsys.readouterr().err


def test_ctrl_c_while_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*asked: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safemargin.cli.fleet._check", interrupted)
    assert main(["watch", "--remote"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


def test_a_fleet_without_a_tolerance_starts_in_the_middle_of_a_plateau() -> None:
    table = margins()
    assert _monitors(CallOptions(), table)().rule.tolerance == default_tolerance(table) == 1.4
    assert _monitors(CallOptions(tolerance=0.25), table)().rule.tolerance == 0.25
