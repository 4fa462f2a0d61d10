"""The state of a fleet, and the server over it, in-process: what is told, refused and logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.margins import margins

import safemargin as sm
from safemargin.errors import AuditLogError, InvalidInput
from safemargin.web.fleet import Fleet
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import (
    Hello,
    Report,
    read_hello,
    read_json,
    read_picture,
    read_report,
)
from safemargin.web.fleet.news import News
from safemargin.web.fleet.people import identity_of
from safemargin.web.fleet.track import CALL, Track

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from safemargin.web.access import Access, find_page_token, find_token
from safemargin.web.connections import AGENT_RATE, MOST_FAULTS
from safemargin.web.fleet_app import create_fleet_app

ADDRESS = "http://127.0.0.1"
AGENTS, LIVE = "ws://127.0.0.1/agents", "ws://127.0.0.1/live"
TOKEN = "a token of these tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JPEG = b"\xff\xd8\xff and so on"


class Link:
    """An agent that only listens."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.closed = ""

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(message)

    def takes(self) -> bool:
        return not self.closed

    def close(self, why: str) -> None:
        self.closed = why

    def last(self, kind: str) -> dict[str, Any]:
        return next(each for each in reversed(self.heard) if each["kind"] == kind)


class Page:
    """A page that only listens."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.person = fleet.arrive(f"secret of {name:10}", name)
        self.looks_at: int | None = None
        self.heard: list[Any] = []
        fleet.pages.add(self)

    def send(self, message: Any) -> None:
        self.heard.append(message)

    @property
    def notes(self) -> list[str]:
        return [each["text"] for each in self.heard if each["kind"] == "note"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sm.AuditLog]:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as opened:
        yield opened


def kinds(log: sm.AuditLog) -> list[str]:
    return [entry.kind for entry in log]


def report(step: int, margin: int = 4, *, call: bool = False, waits: bool = False) -> Report:
    return Report(0, step, (0.5, -1.0), 0, margin, 1.5, call, why="why" * call, waits=waits)


HELLO = Hello("arm", "1", action_names=("LEFT", "RIGHT"))


# -- the state ---------------------------------------------------------------------------------


def test_take_over_act_and_hand_back(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log), Link()
    ann = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)
    fleet.report(agent, report(0))
    fleet.control.take(ann.person, agent)
    assert link.last("taken") == {"kind": "taken", "by": "Ann"}
    assert agent.to_dict()["control"] == "Ann"
    with pytest.raises(InvalidInput, match="too late: arm does not wait for this action"):
        fleet.control.act(ann.person, agent, 0, 0, 1)  # it has not asked
    assert "action" not in [each["kind"] for each in link.heard]
    fleet.see(agent, 1, JPEG)
    fleet.report(agent, report(1, waits=True))
    assert agent.waiting
    with pytest.raises(InvalidInput, match="an action of arm is a whole number from 0 to 1"):
        fleet.control.act(ann.person, agent, 0, 1, 2)
    fleet.control.act(ann.person, agent, 0, 1, 1)
    assert link.last("action") == {"kind": "action", "episode": 0, "step": 1, "action": 1}
    with pytest.raises(InvalidInput, match="too late"):
        fleet.control.act(ann.person, agent, 0, 1, 0)  # the same decision is not answered twice
    fleet.report(agent, report(2, waits=True))
    fleet.control.act(ann.person, agent, 0, 2, None)
    assert link.last("action")["action"] is None
    fleet.control.hand_back(ann.person, agent)
    assert link.heard[-2:] == [{"kind": "free"}, {"kind": "pictures", "every": 0.25}]
    entries = list(log)
    assert kinds(log) == ["server-started", "joined", "taken", "action", "action", "handed-back"]
    assert entries[3].details | {"action": 1, "overruled": True, "proposed_name": "LEFT"} == (
        entries[3].details
    )
    assert log.picture(4) == JPEG
    assert entries[4].details["own"]
    assert (entries[4].step, entries[4].details["action_name"]) == (2, "LEFT")
    with pytest.raises(InvalidInput, match="arm is not yours to steer; take it over first"):
        fleet.control.act(ann.person, agent, 0, 2, 0)
    with pytest.raises(InvalidInput, match="arm is not yours to hand back"):
        fleet.control.hand_back(ann.person, agent)


def test_an_action_that_does_not_reach_the_agent(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log), Link()
    ann = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)
    fleet.control.take(ann.person, agent)
    fleet.report(agent, report(0, waits=True))
    link.close("it ends")
    with pytest.raises(InvalidInput, match="too late: arm cannot be reached any more; not done"):
        fleet.control.act(ann.person, agent, 0, 0, 1)
    assert kinds(log)[-1] == "taken"  # nothing is claimed to have been done
    link.closed = ""
    fleet.control.act(ann.person, agent, 0, 0, 1)
    fleet.depart(agent, link, "lost", "its connection broke off")
    assert "it is not known whether the last action reached it" in list(log)[-1].text
    assert ann.notes[-1].startswith("arm, which you steer, is lost: its connection broke off; it")
    link = Link()
    fleet.join(HELLO, link)
    fleet.report(agent, report(0, waits=True))
    fleet.control.act(ann.person, agent, 0, 0, 1)
    fleet.report(agent, report(1, waits=True))  # it took it
    fleet.depart(agent, link, "lost", "its connection broke off")
    assert list(log)[-1].text == "arm is lost: its connection broke off"


def test_two_people_want_the_same_agent(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log), Link()
    ann, ben = Page(fleet, "Ann"), Page(fleet, "Ben")
    agent = fleet.join(HELLO, link)
    fleet.control.take(ann.person, agent)
    with pytest.raises(InvalidInput, match="Ann took arm over before you"):
        fleet.control.take(ben.person, agent)
    assert agent.holder is ann.person
    assert ann.notes == ["Ben wants arm, too. You have it."]
    fleet.report(agent, report(0, waits=True))
    fleet.control.take(ben.person, agent, force=True)
    assert agent.holder is ben.person
    fleet.control.act(ben.person, agent, 0, 0, 1)  # the question is his now
    assert link.last("action")["action"] == 1
    assert ann.notes[-1] == "Ben took arm from you."
    assert kinds(log)[2:] == ["taken", "refused", "taken", "action"]
    assert list(log)[-2].text == "Ben took arm over: taken from Ann"


def test_an_agent_that_does_not_say_what_it_can_do(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    ann = fleet.arrive("the secret of Ann", "Ann")
    agent = fleet.join(Hello("mute", "1"), Link())
    fleet.control.take(ann, agent)
    fleet.report(agent, Report(0, 0, margin=1, waits=True))
    with pytest.raises(InvalidInput, match="mute did not say which actions it has"):
        fleet.control.act(ann, agent, 0, 0, 1)
    fleet.control.act(ann, agent, 0, 0, None)  # its own is always possible
    assert kinds(log)[-1] == "action"


def test_calls_begin_and_end_once(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log), Link()
    told: list[Any] = []
    fleet.journal.listeners.append(told.append)
    agent = fleet.join(HELLO, link)
    fleet.see(agent, 0, JPEG)
    for step, call in enumerate([False, True, True, False, True]):
        fleet.report(agent, report(step, 0 if call else 4, call=call))
    assert agent.calls == 2
    fleet.end_episode(agent)
    assert kinds(log)[2:] == ["call", "release", "call", "release"]
    assert list(log)[-1].details["why"] == "the episode has ended"
    assert agent.track.last()["flags"] == [0, CALL, CALL, 0, CALL]
    assert [entry.pictured for entry in log if entry.kind == "call"] == [True, False]
    assert [event.kind for event in told] == ["call", "release", "call", "release"]
    assert (told[0].agent, told[0].step, told[0].why) == (0, 1, "arm: why")


def test_a_decision_told_twice_counts_once(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log, make_monitor=lambda: sm.Monitor(margins(), tolerance=1.0)), Link()
    page = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)
    bare = Report(0, 3, (0.0, 2.0))
    fleet.report(agent, bare)
    fleet.control.take(page.person, agent)
    fleet.report(agent, Report(0, 3, (0.0, 2.0), waits=True))
    assert agent.waiting
    assert agent.track.count == fleet.decisions == len(fleet.journal.news.rows) == 1
    assert agent.monitor is not None
    assert agent.monitor.steps == 1
    assert agent.margin == 1


def test_the_servers_own_monitor_judges_scores(log: sm.AuditLog) -> None:
    make = lambda: sm.Monitor(margins(), tolerance=1.0, call_at=2)  # noqa: E731
    fleet, link = Fleet(log, make_monitor=make), Link()
    agent = fleet.join(Hello("a", "1", policy="sha256:abc"), link)
    found = []
    for step, high in enumerate([0.0, 2.0, 9.0, float("nan")]):
        fleet.report(agent, Report(0, step, (0.0, high)))
        found.append((agent.margin, agent.calling, agent.proxy))
    assert found == [(4, False, 0.0), (1, True, 2.0), (0, True, 9.0), (0, True, None)]
    assert "no finite proxy" in agent.why
    with pytest.raises(sm.SafemarginError, match="made for another policy"):
        fleet.join(Hello("b", "1", policy="sha256:other"), link)
    fleet.depart(agent, link, "lost", "gone")
    fleet.join(Hello("a", "1", policy="sha256:abc"), link)
    assert agent.monitor is not None
    assert agent.monitor.steps == 4  # what it knows of drift is not forgotten
    bare = Fleet.__new__(Fleet)
    bare.__dict__.update(fleet.__dict__, make_monitor=None)
    other = bare.join(Hello("c", "1"), link)
    with pytest.raises(InvalidInput, match="this server has no margins file"):
        bare.report(other, Report(0, 0, (0.0, 1.0)))


@pytest.mark.parametrize(
    ("on_lost", "kind"), [("go-on", "handed-back"), ("hold", "absent"), ("stop", "stopped")]
)
def test_a_person_who_is_gone(log: sm.AuditLog, on_lost: Any, kind: str) -> None:
    fleet, link = Fleet(log, on_lost=on_lost, grace=20), Link()
    page = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)
    fleet.control.take(page.person, agent)
    fleet.report(agent, report(0, waits=True))
    fleet.people.depart(page.person)
    gone = page.person.gone_since
    assert gone is not None
    fleet.control.check_absence(gone + 19)
    assert kinds(log)[-1] == "taken"
    fleet.control.check_absence(gone + 21)
    fleet.control.check_absence(gone + 22)  # told once
    assert kinds(log)[3:] == [kind]
    if on_lost == "hold":
        assert agent.holder is page.person
        assert agent.waiting
        again = fleet.arrive("secret of Ann       ")
        assert again is agent.holder
        assert not agent.reason
    else:
        assert agent.holder is None
        assert link.heard[-1 if on_lost == "stop" else -2]["kind"] == {
            "go-on": "free",
            "stop": "stop",
        }[on_lost]  # fmt: skip


def abandoned(fleet: Fleet, link: Link) -> Agent:
    """Ann's agent is lost, and then she has been gone for too long."""
    page = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)
    fleet.control.take(page.person, agent)
    fleet.depart(agent, link, "lost", "its connection broke off")
    fleet.people.depart(page.person)
    fleet.control.check_absence(time.time() + 21)
    return agent


def test_a_lost_agent_is_stopped_when_it_comes_back(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log, on_lost="stop", grace=20), Link()
    agent = abandoned(fleet, link)
    fleet.control.check_absence(time.time() + 22)
    assert kinds(log)[3:] == ["lost", "stop-due"]  # told once, and nobody was stopped yet
    assert list(log)[-1].text == (
        "arm is to stop as soon as it can be reached: Ann has been gone for 20 s"
    )
    assert agent.to_dict()["reason"].endswith("; it is to stop as soon as it can be reached")
    back = Link()
    fleet.join(HELLO, back)
    assert back.heard[:2] == [
        {"kind": "welcome", "taken": True},  # it does not go on before it hears the next
        {"kind": "stop", "why": "Ann has been gone for 20 s"},
    ]
    assert kinds(log)[5:] == ["back", "stopped"]
    assert agent.to_dict()["reason"] == ""
    fleet.depart(agent, back, "lost", "its connection broke off")
    again = Link()
    fleet.join(HELLO, again)  # the same program: it has not heard of it, or does not care
    assert again.last("stop")
    fleet.depart(agent, again, "lost", "its connection broke off")
    other = Link()
    fleet.join(Hello("arm", "2"), other)  # somebody started it anew
    fleet.control.check_absence()
    assert "stop" not in [each["kind"] for each in other.heard]


def test_an_agent_that_cannot_be_told_to_stop_is_told_later(log: sm.AuditLog) -> None:
    fleet, link = Fleet(log, on_lost="stop", grace=20), Link()
    page = Page(fleet, "Ann")
    fleet.control.take(page.person, fleet.join(HELLO, link))
    fleet.people.depart(page.person)
    link.closed = "its connection is about to break off"
    fleet.control.check_absence(time.time() + 21)
    assert kinds(log)[3:] == ["stop-due"]
    link.closed = ""
    fleet.control.check_absence()
    assert link.heard[-1]["kind"] == "stop"
    assert kinds(log)[4:] == ["stopped"]


@pytest.mark.parametrize("dismissed", [False, True])
def test_a_server_that_starts_again_knows_who_is_to_stop(tmp_path: Path, dismissed: bool) -> None:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        fleet = Fleet(log, on_lost="stop", grace=20)
        agent = abandoned(fleet, Link())
        if dismissed:
            fleet.control.dismiss(fleet.arrive("b" * 20), agent)
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        fleet, link = Fleet(log), Link()
        assert [(each.holder, each.dismissed) for each in fleet.agents] == [(None, dismissed)]
        fleet.join(Hello("arm", "2"), link)
        assert link.last("stop") == {"kind": "stop", "why": "Ann has been gone for 20 s"}
        fleet.depart(fleet.agents[0], link, "lost", "gone")
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        fleet, link = Fleet(log), Link()
        fleet.join(Hello("arm", "3"), link)
        assert "stop" not in [each["kind"] for each in link.heard]  # it was told


def test_people_are_recognised_and_told_apart(log: sm.AuditLog) -> None:
    fleet = Fleet(log)
    first, second = fleet.arrive("a" * 20), fleet.arrive("b" * 20)
    assert (first.name, second.name) == ("person 1", "person 2")
    fleet.rename(second, "person 1")
    assert second.name == "person 1 2"
    assert fleet.arrive("a" * 20) is first
    assert first.pages == 2
    fleet.people.depart(first)
    assert first.gone_since is None
    fleet.people.depart(first)
    assert first.gone_since is not None


def test_a_server_that_starts_again_knows_what_was(tmp_path: Path) -> None:
    path, secret = tmp_path / "watch.db", "the secret of Ann"
    with sm.AuditLog(path, write=True) as log:
        fleet = Fleet(log)
        ann = fleet.arrive(secret, "Ann")
        links = [Link() for _ in range(3)]
        agents = [fleet.join(Hello(f"a{n}", "1"), links[n]) for n in range(3)]
        fleet.report(agents[0], report(5, 0, call=True))
        fleet.control.take(ann, agents[0])
        fleet.depart(agents[2], links[2], "left")
    # Nothing is closed in order: as after kill -9.
    with sm.AuditLog(path, write=True) as log:
        fleet = Fleet(log, grace=20)
        assert [(agent.name, agent.status) for agent in fleet.agents] == [
            ("a0", "lost"),
            ("a1", "lost"),
        ]
        assert fleet.agents[0].calls == 1
        assert fleet.agents[0].holder is not None
        assert fleet.agents[0].holder.name == "Ann"
        assert secret not in path.read_bytes().decode("latin-1")
        link = Link()
        fleet.join(Hello("a0", "2"), link)
        assert [each["kind"] for each in link.heard[:2]] == ["welcome", "taken"]
        assert link.heard[0]["taken"]
        assert fleet.arrive("somebody else's secret").name == "person 1"
        assert fleet.arrive(secret) is fleet.agents[0].holder
        assert fleet.agents[0].holder.identity == identity_of(secret)
        fleet.control.check_absence(time.time() + 60)  # she is back, so it stays hers
        assert fleet.agents[0].holder is not None


def test_agents_that_are_gone_can_be_dismissed(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    with sm.AuditLog(path, write=True) as log:
        fleet = Fleet(log)
        ann, ben = Page(fleet, "Ann"), Page(fleet, "Ben")
        links = [Link() for _ in range(3)]
        lost, left, back = (fleet.join(Hello(f"a{n}", "1"), links[n]) for n in range(3))
        with pytest.raises(InvalidInput, match="a0 is live; only an agent that is gone"):
            fleet.control.dismiss(ann.person, lost)
        fleet.control.take(ann.person, lost)
        fleet.depart(lost, links[0], "lost", "gone")
        with pytest.raises(InvalidInput, match="a0 belongs to Ann, who waits for it"):
            fleet.control.dismiss(ben.person, lost)
        fleet.control.dismiss(ann.person, lost)
        assert lost.to_dict()["dismissed"]
        assert lost.holder is None
        assert list(log)[-1].text == "Ann dismissed a0"
        fleet.report(left, report(0, 0, call=True))
        fleet.depart(left, links[1], "left")  # its call ends after that
        fleet.depart(back, links[2], "lost", "gone")
        fleet.control.dismiss(ben.person, back)
        fleet.join(Hello("a2", "1"), Link())
        assert not back.to_dict()["dismissed"]
    with sm.AuditLog(path, write=True) as log:
        assert [agent.name for agent in Fleet(log).agents] == ["a2"]  # the others were gone


def test_names_belong_to_one_agent(log: sm.AuditLog) -> None:
    fleet, first, second = Fleet(log, most_agents=1), Link(), Link()
    agent = fleet.join(HELLO, first)
    with pytest.raises(InvalidInput, match="an agent named 'arm' is connected already"):
        fleet.join(Hello("arm", "2"), second)
    assert fleet.join(HELLO, second) is agent  # the same one, over a new connection
    assert first.closed == "the same agent has connected again"
    fleet.depart(agent, first, "lost", "late news of the old connection")
    assert agent.status == "live"
    with pytest.raises(InvalidInput, match="there are 1 agents already"):
        fleet.join(Hello("leg", "1"), Link())
    fleet.depart(agent, second, "lost", "gone")
    with pytest.raises(InvalidInput, match="arm cannot be taken over: it is lost"):
        fleet.control.take(fleet.arrive("x" * 20), agent)


def test_what_cannot_be_logged_is_not_done(
    log: sm.AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, link = Fleet(log), Link()
    page = Page(fleet, "Ann")
    agent = fleet.join(HELLO, link)

    def full(*arguments: Any, **more: Any) -> None:
        raise AuditLogError("the disk is full")

    monkeypatch.setattr(log, "add", full)
    fleet.report(agent, report(0, 0, call=True))  # an agent is not held up by it
    assert agent.calling
    assert page.notes == ["The log cannot be written: the disk is full"]
    assert fleet.snapshot()["about"]["log_fault"] == "the disk is full"
    with pytest.raises(
        InvalidInput, match="not done, because it cannot be logged: the disk is full"
    ):
        fleet.control.take(page.person, agent)
    assert agent.holder is None


def test_pictures_only_as_often_as_somebody_looks(log: sm.AuditLog) -> None:
    fleet, links = Fleet(log), [Link() for _ in range(20)]
    for number, link in enumerate(links):
        fleet.join(Hello(f"a{number}", "1"), link)
    assert links[0].last("pictures")["every"] is None
    page = Page(fleet, "Ann")
    page.looks_at = 3
    fleet.pace_pictures()
    assert links[0].last("pictures")["every"] == 0.5  # 40 a second in all
    assert links[3].last("pictures")["every"] == 0.0


def test_a_track_has_a_fixed_length() -> None:
    track = Track(4)
    for step in range(10):
        track.add(1, step, step % 3, None if step == 8 else step / 2, 0)
    assert track.count == 10
    assert track.last()["steps"] == [6, 7, 8, 9]
    assert track.last(2) == {
        "episodes": [1, 1],
        "steps": [8, 9],
        "margins": [2, 0],
        "proxies": [None, 4.5],
        "flags": [0, 0],
    }


# -- messages ----------------------------------------------------------------------------------


NAME = "a text of 1 to 60 printable characters"
SCORES = "a list of 1 to 1024 numbers, with null for one that is not finite"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[1]", "must be a JSON object, got a list"),
        ('{"kind": "decision", "step": 1}', "the first message must be"),
    ],
)
def test_messages_that_are_no_hello(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_hello(read_json(text))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, f"name must be {NAME}, got ''$"),
        ({"name": "  "}, f"name must be {NAME}, got '  '$"),
        ({"name": 3}, f"name must be {NAME}, got 3$"),
        ({"name": "a" * 61}, f"name must be {NAME}, got 'aaaa"),
        ({"name": "a\x00"}, rf"name must be {NAME}, got 'a\\x00'$"),
        ({"name": "a\n"}, rf"name must be {NAME}, got 'a\\n'$"),
        ({}, f"name must be {NAME}, got nothing$"),
        (
            {"name": "a", "action_names": 3},
            "action_names must be a list of at most 256 texts, got 3$",
        ),
        ({"name": "a", "action_names": ["x"] * 257}, "action_names must be .* texts, got a list$"),
        (
            {"name": "a", "dimensions": -1},
            "dimensions must be a whole number from 0 to 256, got -1$",
        ),
        ({"name": "a", "dimensions": None}, "dimensions must be a whole number .*, got null$"),
        ({"name": "a", "policy": 3}, "policy must be a text or null, got 3$"),
    ],
)
def test_hellos_that_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_hello({"kind": "hello", **fields})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"step": 1}, "needs its scores, or a margin"),
        ({"step": -1, "margin": 1}, "step must be a whole number from 0 to 2147483647, got -1$"),
        ({"step": 1.5, "margin": 1}, r"step must be a whole number .*, got 1\.5$"),
        ({"step": True, "margin": 1}, "step must be a whole number .*, got True$"),
        ({"step": None, "margin": 1}, "step must be a whole number .*, got null$"),
        ({"step": 2**40, "margin": 1}, f"step must be a whole number .*, got {2**40}$"),
        ({"margin": "3"}, "margin must be a whole number .*, got '3'$"),
        ({"margin": 3, "proxy": "high"}, "proxy must be a finite number or null, got 'high'$"),
        ({"margin": 3, "proxy": True}, "proxy must be a finite number or null, got True$"),
        ({"margin": 3, "proxy": math.inf}, "proxy must be a finite number or null, got inf$"),
        ({"margin": 3, "proxy": 10**400}, "proxy must be a finite number or null, got 1000"),
        ({"scores": []}, f"scores must be {SCORES}, got a list$"),
        ({"scores": [0] * 1025}, f"scores must be {SCORES}, got a list$"),
        ({"scores": "12"}, f"scores must be {SCORES}, got '12'$"),
        ({"scores": [1, "2"]}, f"scores must be {SCORES}, got '2' at index 1$"),
        ({"scores": [1, True]}, f"scores must be {SCORES}, got True at index 1$"),
        ({"scores": [10**400]}, f"scores must be {SCORES}, got 1000.* at index 0$"),
        ({"scores": [1], "proposed": {}}, "proposed must be an action: .*, got an object$"),
        ({"scores": [1], "proposed": True}, "proposed must be an action: .*, got True$"),
        ({"scores": [1], "proposed": [0] * 257}, "proposed must be an action: .*, got a list$"),
        ({"margin": 3, "proposed": 10**400}, "proposed must be an action: .*, got 1000000"),
        ({"margin": 3, "proposed": 2**53}, "proposed must be an action: .*, got 9007"),
    ],
)
def test_reports_that_are_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_report(message)


def test_null_stands_for_what_is_missing() -> None:
    nothing = dict.fromkeys(["scores", "proposed", "proxy", "call", "waits"])
    assert read_report({"margin": 1, **nothing}) == Report(margin=1)
    scores = read_report({"scores": [1, None], "margin": None}).scores
    assert scores is not None
    assert scores[0] == 1.0
    assert math.isnan(scores[1])


FORGED = "low\n   999  2026-01-01 10:00:00       0/7  Ann acted for arm: FIRE\x1b[31m\ud800"
PLAIN = r"low\n   999  2026-01-01 10:00:00       0/7  Ann acted for arm: FIRE\x1b[31m\ud800"


def test_what_cannot_be_printed_is_spelled_out() -> None:
    assert read_report({"margin": 1, "why": FORGED}).why == PLAIN
    assert read_report({"margin": 1, "why": "1\u202f234 · größer"}).why == "1 234 · größer"
    texts = {"policy": FORGED, "environment": FORGED, "instance": "\n", "on_lost": "\x00"}
    read = read_hello({"kind": "hello", "name": "a", "action_names": ["UP\r"], **texts})
    assert read.action_names == (r"UP\r",)
    assert (read.policy, read.environment) == (PLAIN, PLAIN)
    assert (read.instance, read.on_lost) == (r"\n", r"\x00")


def test_pictures_are_pictures() -> None:
    assert read_picture(b"P\x00\x00\x01\x00" + JPEG) == (256, JPEG)
    for wrong in (b"", b"P", b"Q\x00\x00\x01\x00" + JPEG, b"P\x00\x00\x00\x00<script>"):
        with pytest.raises(InvalidInput, match="a binary message must be a picture"):
            read_picture(wrong)
    with pytest.raises(InvalidInput, match="a picture may have 512 KiB, got 600"):
        read_picture(b"P\x00\x00\x00\x00" + JPEG + bytes(600 << 10))


# -- the server --------------------------------------------------------------------------------


@pytest.fixture
def fleet(log: sm.AuditLog) -> Fleet:
    return Fleet(log)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[TestClient]:
    app = create_fleet_app(fleet, Access(TOKEN))
    with TestClient(app, base_url=ADDRESS) as opened:
        yield opened


def hello(name: str = "arm") -> dict[str, Any]:
    return {"kind": "hello", "name": name, "instance": name, "action_names": ["LEFT", "RIGHT"]}


def until(socket: Any, kind: str) -> dict[str, Any]:
    """The next message of a kind; others are passed over."""
    while True:
        message = socket.receive()
        if message["type"] == "websocket.close":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        if message.get("text"):
            told: dict[str, Any] = json.loads(message["text"])
            if told["kind"] == kind:
                return told


@contextlib.contextmanager
def opened_page(client: TestClient, name: str) -> Iterator[Any]:
    with client.websocket_connect(LIVE) as socket:
        socket.send_json({"do": "hello", "secret": f"the secret of {name}", "name": name})
        yield socket


def act(step: int, **changes: Any) -> dict[str, Any]:
    """What a page sends that has just heard of the server."""
    place = {"agent": 0, "episode": 0, "step": step, "action": 1}
    return {"do": "act", **place, "beat": time.monotonic(), **changes}


def test_an_action_from_before_a_stall_is_refused(client: TestClient, log: sm.AuditLog) -> None:
    with (
        client.websocket_connect(AGENTS, headers=BEARER) as agent,
        opened_page(client, "Ann") as page,
    ):
        agent.send_json(hello())
        until(agent, "welcome")
        page.send_json({"do": "look", "agent": 0})
        page.send_json({"do": "take", "agent": 0, "beat": time.monotonic() - 32})
        assert until(page, "note")["text"] == (
            "too late: the server had been out of reach for 32 s; not done"
        )
        page.send_json({"do": "take", "agent": 0, "beat": time.monotonic()})
        until(agent, "taken")
        agent.send_json({"kind": "decision", "step": 1, "margin": 0, "waits": True})
        while not until(page, "seen").get("waiting"):
            pass
        for beat in (time.monotonic() - 4, float("nan"), None, "x", 10**400):
            page.send_json(act(1, beat=beat))
            told = until(page, "note")
            assert told["undone"] == "act"
            assert "too late" in told["text"] or "beat must be the number" in told["text"]
        assert "action" not in kinds(log)
        page.send_json(act(1, beat=until(page, "beat")["beat"]))  # heard just now
        assert until(agent, "action")["action"] == 1
    assert kinds(log).count("action") == kinds(log).count("taken") == 1


def test_from_an_agent_to_a_page_and_back(client: TestClient) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        assert until(agent, "welcome") == {"kind": "welcome", "taken": False}
        with opened_page(client, "Ann") as page:
            assert [each["name"] for each in until(page, "fleet")["agents"]] == ["arm"]
            page.send_json({"do": "look", "agent": 0})
            until(page, "timeline")
            agent.send_json(
                {"kind": "decision", "step": 0, "margin": 2, "proxy": 1.5, "scores": [1, 0]}
            )
            assert until(page, "decisions")["rows"] == [[0, 0, 0, 2, 1.5, 0]]
            assert until(page, "seen")["scores"] == [1.0, 0.0]
            page.send_json({"do": "take", "agent": 0})
            assert until(agent, "taken")["by"] == "Ann"
            agent.send_bytes(b"P\x00\x00\x00\x01" + JPEG)
            agent.send_json(
                {"kind": "decision", "step": 1, "margin": 0, "call": True, "waits": True}
            )
            while not until(page, "seen")["waiting"]:
                pass
            page.send_json(act(1))
            assert until(agent, "action")["action"] == 1
            page.send_json({"do": "give", "agent": 0})
            until(agent, "free")
            page.send_json({"do": "name", "name": "Anna"})
            while until(page, "you")["name"] != "Anna":
                pass
        with opened_page(client, "Ann") as again:  # closed and opened again: the true state
            state = until(again, "fleet")["agents"][0]
            assert state["control"] is None
            assert state["calling"]
            assert (state["margin"], state["step"], state["human_actions"]) == (0, 1, 1)
        agent.send_json({"kind": "left"})
        assert until(agent, "closed")["text"] == "goodbye"
    state = client.get("/api/fleet").json()["agents"][0]
    assert (state["status"], state["calling"]) == ("left", False)


def test_two_pages_take_over_at_once(client: TestClient, log: sm.AuditLog) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        until(agent, "welcome")
        with opened_page(client, "Ann") as ann, opened_page(client, "Ben") as ben:
            until(ann, "you")
            until(ben, "you")
            for page in (ann, ben):
                page.send_json({"do": "take", "agent": 0})
            winner = until(agent, "taken")["by"]  # either, but only one
            told = {"Ann": until(ann, "note")["text"], "Ben": until(ben, "note")["text"]}
            loser, second = ("Ben", ben) if winner == "Ann" else ("Ann", ann)
            assert told[winner] == f"{loser} wants arm, too. You have it."
            assert f"{winner} took arm over before you" in told[loser]
            second.send_json(act(0))
            assert "not yours to steer" in until(second, "note")["text"]
    assert kinds(log).count("taken") == kinds(log).count("refused") == 1


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
)
def test_an_agent_with_a_wrong_token(client: TestClient, header: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(AGENTS, headers=header),
    ):
        pass
    assert denied.value.status_code == 401
    assert "wrong or missing token: an agent needs" in denied.value.text


def test_an_agent_by_plain_http(client: TestClient, fleet: Fleet, log: sm.AuditLog) -> None:
    decision = {"step": 0, "margin": 3, "scores": [1, 0], "about": {"action_names": ["L", "R"]}}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = client.post("/agents/arm", json=decision, headers=headers)
        assert refused.status_code == 401
        assert "wrong or missing token" in refused.json()["detail"]
    assert client.post("/agents/arm", json=decision, headers=BEARER).json() == {
        "taken": False, "answered": False, "stop": None,
    }  # fmt: skip
    assert (fleet.agents[0].name, fleet.agents[0].margin) == ("arm", 3)
    for content, said in [(b"{", "must be JSON"), (b"{}", "needs its scores, or a margin")]:
        wrong = client.post("/agents/arm", content=content, headers=BEARER)
        assert wrong.status_code == 400
        assert said in wrong.json()["detail"]
    with opened_page(client, "Ann") as page:
        until(page, "you")
        page.send_json({"do": "look", "agent": 0})
        page.send_json({"do": "take", "agent": 0})
        until(page, "timeline")
        told: list[Any] = []

        def ask() -> None:
            question = {**decision, "step": 1, "waits": True}
            told.append(client.post("/agents/arm", json=question, headers=BEARER).json())

        asking = threading.Thread(target=ask)
        asking.start()
        while not until(page, "seen")["waiting"]:
            pass
        page.send_json(act(1))
        asking.join(30)
    assert told == [{"taken": True, "answered": True, "action": 1}]
    assert client.delete("/agents/arm", headers=BEARER).json() == {"said": "goodbye"}
    assert client.delete("/agents/arm", headers=BEARER).status_code == 404
    assert kinds(log) == ["server-started", "joined", "taken", "action", "left", "handed-back"]


def test_a_plain_agent_that_falls_silent_is_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safemargin.web import plain_agents

    desk = plain_agents.PlainAgents(fleet)
    asyncio.run(desk.decide("arm", b'{"step": 0, "margin": 1}'))
    desk.sweep()
    assert fleet.agents[0].status == "live"
    monkeypatch.setattr(plain_agents, "SILENCE", -1.0)
    desk.sweep()
    assert (fleet.agents[0].status, fleet.agents[0].link) == ("lost", None)
    asyncio.run(desk.decide("arm", b'{"step": 1, "margin": 1}'))
    assert fleet.agents[0].status == "live"


def test_another_site_cannot_watch(client: TestClient) -> None:
    headers = {"Origin": "http://evil.example", "Host": "127.0.0.1"}
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(LIVE, headers=headers),
    ):
        pass
    assert denied.value.status_code == 403
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_people_from_elsewhere_need_a_token_of_their_own(fleet: Fleet) -> None:
    app = create_fleet_app(fleet, Access(TOKEN, "people's own token"), hosts=("*",))
    with TestClient(app, base_url="http://far.example") as client:
        assert client.get("/").status_code == 401
        assert client.get("/api/fleet").status_code == 401
        live = "ws://far.example/live"
        with pytest.raises(WebSocketDenialResponse), client.websocket_connect(live):
            pass
        assert client.get("/", params={"token": TOKEN}).status_code == 401  # the agents' one
        page = client.get("/", params={"token": "people's own token"})
        assert page.status_code == 200
        assert "Fleet" in page.text
        assert "token" not in str(page.url)
        assert client.get("/api/fleet").status_code == 200
        with client.websocket_connect(live) as socket:
            socket.send_json({"do": "hello", "secret": "x" * 20})
            until(socket, "fleet")


def test_malformed_messages_harm_nobody_else(client: TestClient, fleet: Fleet) -> None:
    with (
        client.websocket_connect(AGENTS, headers=BEARER) as good,
        client.websocket_connect(AGENTS, headers=BEARER) as bad,
    ):
        good.send_json(hello("good"))
        until(good, "welcome")
        bad.send_json(hello("bad"))
        bad.send_text("{")
        assert "must be JSON" in until(bad, "error")["text"]
        bad.send_json({"kind": "dance"})
        assert until(bad, "error")["text"] == "the kind of message 'dance' is unknown"
        bad.send_bytes(b"Pxxxx<html>")
        for _ in range(MOST_FAULTS - 3):
            bad.send_text("[]")
        assert "10 messages could not be read" in until(bad, "closed")["text"]
        with pytest.raises(WebSocketDisconnect) as closed:
            until(bad, "anything")
        assert closed.value.code == 1008
        good.send_json({"kind": "decision", "step": 0, "margin": 3})
        good.send_json({"kind": "left"})
        until(good, "closed")
    assert [(agent.name, agent.status) for agent in fleet.agents] == [
        ("good", "left"),
        ("bad", "lost"),
    ]
    assert fleet.agents[0].margin == 3
    assert "10 messages could not be read" in fleet.agents[1].reason


@pytest.mark.parametrize(
    "decision",
    [
        {"margin": 1, "scores": [10**400]},
        {"margin": 1, "proxy": 10**400},
        {"margin": 1, "proposed": [10**400]},
        {"margin": 0, "proxy": 1e39, "call": True, "why": FORGED, "about": {"policy": FORGED}},
    ],
)
def test_strange_numbers_and_texts_harm_nobody_else(
    client: TestClient, log: sm.AuditLog, decision: dict[str, Any]
) -> None:
    answer = client.post("/agents/arm", content=json.dumps(decision), headers=BEARER)
    assert answer.status_code in (200, 400)
    with opened_page(client, "Ann") as page:
        json.loads(page.receive_text(), parse_constant=pytest.fail)  # browsers read no Infinity
    assert all(entry.text.isprintable() for entry in log)


def test_a_flood_is_cut_off(client: TestClient, fleet: Fleet) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        for step in range(int(AGENT_RATE) * 20):
            agent.send_json({"kind": "decision", "step": step, "margin": 1})
        text = until(agent, "closed")["text"]
    assert text == "more than 200 messages a second; report less often"
    assert fleet.agents[0].status == "lost"
    assert fleet.decisions < AGENT_RATE * 20


def test_what_pages_cannot_ask(client: TestClient) -> None:
    with client.websocket_connect(LIVE) as page:
        page.send_json({"do": "take", "agent": 0})
        assert "the first message must be" in until(page, "error")["text"]
        page.send_json({"do": "hello", "secret": "short"})
        assert "secret must be a text of 16 to 100 printable" in until(page, "error")["text"]
        page.send_text('{"do": "hello", "secret": "' + "\\ud800" * 20 + '"}')
        assert "secret must be a text of 16 to 100 printable" in until(page, "error")["text"]
        page.send_json({"do": "hello", "secret": "x" * 20})
        until(page, "fleet")
        page.send_json({"do": "take", "agent": 7})
        assert until(page, "error")["text"] == "there is no agent 7"
        page.send_json({"do": "name", "name": "\n"})
        assert "your name must be a text of 1 to 60 printable" in until(page, "error")["text"]
        page.send_json({"do": "name"})
        assert until(page, "error")["text"] == f"your name must be {NAME}, got nothing"
        page.send_json({"do": "sing"})
        assert until(page, "error")["text"] == "the message 'sing' is unknown"


def test_a_slow_page_is_told_later_but_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from safemargin.web import page_connection
    from safemargin.web.page_connection import BUSY, PageConnection

    page = PageConnection(None, fleet)  # type: ignore[arg-type]

    def read() -> list[Any]:
        """What waits for the page, decisions as lists of their first numbers."""
        found: list[Any] = []
        while page.outgoing.qsize():
            message = page.outgoing.get_nowait()
            told = json.loads(message) if isinstance(message, str) else message
            found.append([row[0] for row in told["rows"]] if "rows" in told else told["kind"])
        return found

    for number in range(500):
        page.tell(News(rows=[(number, 0, 0, 0, 0.0, 0)]))
    assert page.outgoing.qsize() == BUSY  # bounded
    assert read() == [[0], [1], [2], [3]]
    page.tell(News(rows=[(500, 0, 0, 0, 0.0, 0)]))
    assert read() == [list(range(4, 501))]  # nothing is lost
    assert not page.skipped
    monkeypatch.setattr(page_connection, "MOST_ROWS", 3)
    page.tell(News(rows=[(0, 0, 0, 0, 0.0, 0)] * 4))
    assert read() == ["fleet"]  # for ever slower ones, the whole state instead
    assert page.skipped == 4


def pictured(fleet: Fleet, agents: int) -> None:
    for number in range(agents):
        fleet.see(fleet.join(Hello(f"a{number}", "1"), Link()), number, JPEG)


def test_a_page_of_300_agents_with_pictures(client: TestClient, fleet: Fleet) -> None:
    assert client.portal is not None
    client.portal.call(pictured, fleet, 300)
    with opened_page(client, "Ann") as page:
        for step in (0, 1):
            missing = set(range(300))
            while missing:
                message = page.receive()
                assert message["type"] != "websocket.close", message
                if message.get("bytes"):
                    missing.discard(int.from_bytes(message["bytes"][:2], "big"))
            if not step:  # … and once more, all in one round
                client.portal.call(lambda: [fleet.see(each, 1, JPEG) for each in fleet.agents])


def test_a_slow_page_sees_every_agent(fleet: Fleet) -> None:
    from safemargin.web.page_connection import MOST_PICTURES, PageConnection

    pictured(fleet, 300)
    page = PageConnection(None, fleet)  # type: ignore[arg-type]
    found: list[int] = []
    for _ in range(5):
        for _ in range(3):  # three rounds of new pictures before it has read those of one
            page.tell(News(pictured=set(range(300))))
            assert page.outgoing.qsize() == MOST_PICTURES
        while page.outgoing.qsize():
            message = page.outgoing.get_nowait()
            assert isinstance(message, bytes)
            found.append(int.from_bytes(message[:2], "big"))
    assert set(found) == set(range(300))
    assert page.ending is None


def test_the_replay_page_finds_entries_by_number(log: sm.AuditLog) -> None:
    from safemargin.web.replay_app import create_replay_app

    log.add("server-started", picture=JPEG)
    with TestClient(create_replay_app(log, Access("")), base_url=ADDRESS) as client:
        far = 99999999999999999999
        for after, found in [(0, 1), (1, 0), (far, 0), (-far, 1)]:
            answer = client.get("/api/entries", params={"after": after})
            assert len(answer.json()["entries"]) == found
        assert client.get("/api/entries/1/picture").content == JPEG
        for number in (2, far, -far):
            assert client.get(f"/api/entries/{number}/picture").status_code == 404


def test_the_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    for name in ("style.css", "fleet.css", "fleet.js", "fleet-tiles.js", "fleet-agent.js"):
        assert f"/pages/{name}" in page
        assert "http:" not in client.get(f"/pages/{name}").text
        assert "https://" not in client.get(f"/pages/{name}").text
    assert client.get("/pages/nothing.js").status_code == 404


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAFEMARGIN_TOKEN", raising=False)
    made = find_token(None, tmp_path / "watch.db")
    assert len(made) >= 32
    assert find_token(None, tmp_path / "watch.db") == made  # the same after a restart
    kept = tmp_path / "watch.db-token"
    assert kept.stat().st_mode & 0o077 == 0
    people = find_page_token(tmp_path / "watch.db")
    assert people == find_page_token(tmp_path / "watch.db") != made
    assert (tmp_path / "watch.db-page-token").stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidInput, match=r"a token cannot be kept in .*: No such file"):
        find_page_token(tmp_path / "none" / "watch.db")
    monkeypatch.setenv("SAFEMARGIN_TOKEN", "from the environment")
    assert find_page_token(tmp_path / "watch.db") == people
    assert find_token(None, tmp_path / "watch.db") == "from the environment"
    kept.write_text("short\n")
    with pytest.raises(InvalidInput, match="a token of at least 16 plain characters, got 5"):
        find_token(kept, tmp_path / "watch.db")
    with pytest.raises(InvalidInput, match="the token cannot be read from"):
        find_token(tmp_path / "none", tmp_path / "watch.db")
