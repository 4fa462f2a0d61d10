"""What people do about calls: they have seen one, want none for a while, or hand one over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import safemargin as sm
from safemargin.errors import InvalidInput

pytest.importorskip("pydantic")

from helpers.fleet import HELLO, Link, Page, kinds, report

from safemargin.web.fleet import Fleet


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(log: sm.AuditLog, clock: Clock) -> Fleet:
    return Fleet(log, clock=clock, caller=sm.Caller(length=0, gap=0))


def last(log: sm.AuditLog) -> str:
    return list(log)[-1].text


def test_a_call_is_seen_once(log: sm.AuditLog, fleet: Fleet) -> None:
    ann, ben = Page(fleet, "Ann"), Page(fleet, "Ben")
    agent = fleet.join(HELLO, Link())
    with pytest.raises(InvalidInput, match="arm is no longer calling"):
        fleet.answers.acknowledge(ann.person, agent)
    fleet.report(agent, report(0, 0, call=True))
    fleet.answers.acknowledge(ann.person, agent)
    assert agent.to_dict()["seen_by"] == "Ann"
    assert agent.calling  # what is urgent stays so
    assert last(log) == "Ann has seen the call of arm"
    with pytest.raises(InvalidInput, match="Ann has seen this call of arm already"):
        fleet.answers.acknowledge(ben.person, agent)
    fleet.report(agent, report(1))
    fleet.report(agent, report(2, 0, call=True))
    assert agent.seen_by == ""  # of this call, nobody knows yet


def test_a_snoozed_agent_does_not_call_until_it_is_over(
    log: sm.AuditLog, fleet: Fleet, clock: Clock
) -> None:
    ann = Page(fleet, "Ann")
    agent = fleet.join(HELLO, Link())
    fleet.report(agent, report(0, 0, call=True))
    fleet.answers.snooze(ann.person, agent, 600)
    assert not agent.calling
    assert kinds(log)[-2:] == ["snoozed", "release"]
    assert "for 10 minutes" in list(log)[-2].text
    fleet.report(agent, report(1, 0, call=True))
    assert not agent.calling
    clock.now += 601
    fleet.report(agent, report(2, 0, call=True))
    assert agent.calling
    with pytest.raises(InvalidInput, match="arm is not snoozed"):
        fleet.answers.snooze(ann.person, agent, 0)


def test_a_snoozed_agent_can_be_woken_also_by_a_server_that_starts_again(
    tmp_path: Path, clock: Clock
) -> None:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        fleet = Fleet(log, clock=clock)
        agent = fleet.join(HELLO, Link())
        fleet.answers.snooze(Page(fleet, "Ann").person, agent, 90)
        until = agent.snoozed_until
    with sm.AuditLog(tmp_path / "watch.db", write=True) as log:
        again = Fleet(log, clock=clock)
        (agent,) = again.agents
        assert agent.snoozed_until == until == clock.now + 90
        again.join(HELLO, Link())
        again.answers.snooze(Page(again, "Ann").person, agent, 0)
        again.report(agent, report(0, 0, call=True))
        assert agent.calling
        assert "woken" in kinds(log)


def test_an_agent_or_its_call_is_handed_over(log: sm.AuditLog, fleet: Fleet) -> None:
    ann, ben = Page(fleet, "Ann"), Page(fleet, "Ben")
    agent = fleet.join(HELLO, Link())
    fleet.report(agent, report(0))
    with pytest.raises(InvalidInput, match="arm is not yours to hand over: steer it, or"):
        fleet.answers.hand_over(ann.person, agent, "Ben")
    for nobody in ("Zoe", "Ann"):
        with pytest.raises(InvalidInput, match=f"{nobody} has no page open; hand arm over to"):
            fleet.answers.hand_over(ann.person, agent, nobody)
    fleet.report(agent, report(1, 0, call=True))
    fleet.answers.acknowledge(ann.person, agent)
    fleet.answers.hand_over(ann.person, agent, "Ben")
    assert agent.seen_by == "Ben"
    assert ben.notes == ["Ann hands arm over to you."]
    with pytest.raises(InvalidInput, match="arm is not yours to hand over"):
        fleet.answers.hand_over(ann.person, agent, "Ben")
    fleet.control.take(ben.person, agent)
    fleet.answers.hand_over(ben.person, agent, "Ann")
    assert agent.holder is ann.person
    assert ann.notes[-1] == "Ben hands arm over to you."


def test_a_teams_budget_holds_for_what_agents_report(log: sm.AuditLog, clock: Clock) -> None:
    """Agents that call all the time by their own verdict are called by the budget only."""
    fleet = Fleet(log, clock=clock, caller=sm.Caller("20/hour", seed=0))
    link = Link()
    agents = [fleet.join(HELLO, link)]
    assert link.last("welcome")["team_calls"] is True
    told: list[Any] = []
    fleet.journal.listeners.append(told.append)
    for step in range(3_600):
        clock.now += 1
        fleet.report(agents[0], report(step, 0, call=True))
    began = sum(event.kind == "call" for event in told)
    assert 16 <= began <= 24
