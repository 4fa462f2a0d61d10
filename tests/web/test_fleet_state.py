"""The agents of a fleet, their decisions and calls, and the people who watch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from helpers.margins import margins

import safemargin as sm
from safemargin.errors import InvalidInput

pytest.importorskip("pydantic")

from helpers.fleet import HELLO, JPEG, Link, Page, kinds, report

from safemargin.web.fleet import Fleet
from safemargin.web.fleet.messages import (
    Hello,
    Report,
)
from safemargin.web.fleet.people import identity_of
from safemargin.web.fleet.track import CALL, Track


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
    fleet.make_monitor = None
    other = fleet.join(Hello("c", "1"), link)
    with pytest.raises(InvalidInput, match="this server has no margins file"):
        fleet.report(other, Report(0, 0, (0.0, 1.0)))


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
