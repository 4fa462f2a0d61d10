"""Who has which agent: taking over, acting, handing back, going away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import safemargin as sm
from safemargin.errors import AuditLogError, InvalidInput

pytest.importorskip("pydantic")

from helpers.fleet import HELLO, JPEG, Link, Page, kinds, report

from safemargin.web.fleet import Fleet
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import Hello, Report


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
    with pytest.raises(InvalidInput, match="too late: arm can no longer be reached; not done"):
        fleet.control.act(ann.person, agent, 0, 0, 1)
    assert kinds(log)[-1] == "taken"  # nothing is claimed to have been done
    link.closed = ""
    fleet.control.act(ann.person, agent, 0, 0, 1)
    fleet.depart(agent, link, "lost", "its connection broke")
    assert "it is not known whether the last action reached it" in list(log)[-1].text
    assert ann.notes[-1].startswith("arm, which you steer, is lost: its connection broke; it")
    link = Link()
    fleet.join(HELLO, link)
    fleet.report(agent, report(0, waits=True))
    fleet.control.act(ann.person, agent, 0, 0, 1)
    fleet.report(agent, report(1, waits=True))  # it took it
    fleet.depart(agent, link, "lost", "its connection broke")
    assert list(log)[-1].text == "arm is lost: its connection broke"


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
    fleet.depart(agent, link, "lost", "its connection broke")
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
    fleet.depart(agent, back, "lost", "its connection broke")
    again = Link()
    fleet.join(HELLO, again)  # the same program: it has not heard of it, or does not care
    assert again.last("stop")
    fleet.depart(agent, again, "lost", "its connection broke")
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
