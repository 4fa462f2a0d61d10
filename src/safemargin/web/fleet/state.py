"""The true state of a watched fleet: its agents, their decisions, and what pages show of them.

All of it is used from one thread, the server's; nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from safemargin.errors import InvalidInput
from safemargin.monitor.audit import AuditLog
from safemargin.monitor.caller import Caller
from safemargin.monitor.calls import Call
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.steering import OnLost
from safemargin.web.fleet.agents import Agent, Link, Status
from safemargin.web.fleet.answers import Answers
from safemargin.web.fleet.control import Control
from safemargin.web.fleet.journal import Journal, situation
from safemargin.web.fleet.messages import Hello, Report
from safemargin.web.fleet.people import People, Person
from safemargin.web.fleet.restore import calls_before, restore
from safemargin.web.fleet.track import flags_of

GRACE = 20.0
"""Seconds that a person may be without a page before `on_lost` applies to their agents."""
MOST_AGENTS = 1000
CALL_PICTURES = 5.0
"""Seconds between two calls of one agent that are logged with a picture."""
UNCONFIRMED = "; it is not known whether the last action reached it"


class Fleet:
    """Agents, people, and the log of what happens between them."""

    def __init__(
        self,
        log: AuditLog,
        *,
        make_monitor: Callable[[], Monitor] | None = None,
        on_lost: OnLost = "go-on",
        grace: float = GRACE,
        about: dict[str, Any] | None = None,
        most_agents: int = MOST_AGENTS,
        caller: Caller | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Restore the fleet that the log describes.

        `make_monitor` makes the monitor of an agent that reports scores only. `on_lost` says what
        becomes of an agent whose person has been gone for `grace` seconds. `about` is shown on
        pages. `caller` turns what monitors say into calls; None: calls are as the monitors say.
        `clock`: seconds since 1970.
        """
        self.clock = clock
        self.caller = Caller(length=0, gap=0) if caller is None else caller
        self.caller.restore(*calls_before(log))
        self.journal = Journal(log, clock)
        self._record = self.journal.record
        self._changed = self.journal.changed
        self.pages = self.journal.pages
        self.make_monitor = make_monitor
        self.on_lost = on_lost
        self.about = about or {}
        self.most_agents = most_agents
        self.agents: list[Agent] = []
        self.control = Control(self.agents, self.journal, on_lost=on_lost, grace=grace)
        self.pace_pictures = self.control.pace_pictures
        self.people = People()
        self.answers = Answers(self.agents, self.journal, self.caller, self.control, self.people)
        self.decisions = 0
        self._names: dict[str, Agent] = {}
        for agent in restore(log):
            if agent.holder is not None:
                agent.holder = self.people.remember(agent.holder.identity, agent.holder.name)
            self._add(agent)
        self._record("server-started", **self.about)

    # -- agents --------------------------------------------------------------------------------

    def join(self, hello: Hello, link: Link) -> Agent:
        """Add an agent, or reconnect one; InvalidInput if it may not join."""
        monitor = None if self.make_monitor is None else self.make_monitor()
        if monitor is not None and hello.policy is not None:
            monitor.check(hello.policy)
        agent, kind = self._names.get(hello.name), "back"
        if agent is None:
            if len(self.agents) >= self.most_agents:
                raise InvalidInput(f"there are {self.most_agents} agents already, no more fit in")
            agent, kind = self._add(Agent(hello)), "joined"
        elif agent.link is not None:
            if agent.hello.instance != hello.instance:
                raise InvalidInput(
                    f"an agent named {hello.name!r} is connected already; give this one another "
                    "name"
                )
            agent.link.close("the same agent has connected again")
        if agent.monitor is None or agent.hello.policy != hello.policy:
            agent.monitor = monitor  # else keep the old one, which knows what it has seen
        if agent.stopped and agent.hello.instance == hello.instance:
            agent.stop_due = agent.stopped  # it is still running, so it did not hear of the stop
        agent.stopped = ""
        agent.hello, agent.link = hello, link
        agent.status, agent.reason, agent.waiting = "live", "", False
        agent.actions = agent.actions or len(hello.action_names)
        agent.heard_at = self.clock()
        agent.paced = agent.dismissed = False
        self._record(kind, agent, policy=hello.policy, environment=hello.environment)
        held = agent.holder is not None or bool(agent.stop_due)
        team = {} if self.caller.budget is None else {"team_calls": True}
        link.send({"kind": "welcome", "taken": held, **team})
        self.control.stop_if_due(agent)
        if agent.holder is not None:
            link.send({"kind": "taken", "by": agent.holder.name})
        self.pace_pictures()
        return agent

    def introduce(self, agent: Agent, hello: Hello) -> None:
        """Add what an agent learned about itself after it joined, e.g. its actions' names."""
        agent.hello = replace(
            agent.hello, action_names=hello.action_names, first_action=hello.first_action
        )
        agent.actions = len(hello.action_names) or agent.actions
        self._changed(agent)

    def depart(self, agent: Agent, link: Link, status: Status, reason: str = "") -> None:
        """Mark an agent as gone: it left, died, or its connection broke (lost)."""
        if agent.link is not link:
            return  # it has a new connection
        if agent.holder is not None and status == "lost":
            reason += UNCONFIRMED if agent.unconfirmed else ""
            self.journal.notify(agent.holder, f"{agent.name}, which you steer, is lost: {reason}")
        agent.link, agent.status, agent.reason, agent.waiting = None, status, reason, False
        agent.unconfirmed = False
        if agent.monitor is not None:
            agent.monitor.end_episode(counted=False)
        self.caller.leave(agent.index)
        self._record(status, agent, why=reason or None)
        if status in ("left", "died"):
            self.journal.end_call(agent, "it is gone")
            agent.stop_due = agent.stopped = ""
            if agent.holder is not None:
                self.control.free(agent, f"it {status}")
        self.pace_pictures()

    def report(self, agent: Agent, report: Report) -> None:
        """Take in one decision; the same one again only updates whether the agent waits."""
        before = agent.report
        now = report.episode, report.step
        again = before is not None and (before.episode, before.step) == now
        if report.margin is None:
            report = _judged(agent, report, before if again else None)
        agent.unconfirmed = agent.unconfirmed and again
        agent.margin, agent.proxy = report.margin or 0, report.proxy
        agent.heard_at = self.clock()
        call = None if again else self._call_of(agent, report)
        if call is None:
            report = replace(report, call=agent.calling, why=agent.why)
        else:
            report = replace(report, call=call.on, why=call.why or report.why)
        agent.report = report
        if agent.actions == 0 and report.scores is not None and not agent.hello.dimensions:
            agent.actions = len(report.scores)
            self._changed(agent)
        held = agent.holder is not None
        if not again:
            flags = flags_of(report, human=held)
            row = (*now, agent.margin, report.proxy, flags)
            agent.track.add(*row)
            self.decisions += 1
            if self.pages:
                self.journal.news.rows.append((agent.index, *row))
        if call is not None:
            self._update_call(agent, report, call)
        if report.waits != agent.waiting:
            agent.waiting = report.waits and held
            self._changed(agent)
        if agent.waiting:
            self._show_at_once(agent)
        if report.waits and not held:
            agent.tell({"kind": "free"})  # it asked before it heard that it is free

    def see(self, agent: Agent, step: int, picture: bytes) -> None:
        """Take in a picture of what the agent sees."""
        if agent.picture is None:
            self._changed(agent)
        agent.picture, agent.picture_step = picture, step
        self.journal.news.pictured.add(agent.index)

    def end_episode(self, agent: Agent) -> None:
        """End the agent's episode; its next decision begins another."""
        if self.caller.end_episode(agent.index):
            self.journal.end_call(agent, "the episode has ended")
        if agent.monitor is not None:
            agent.monitor.end_episode()

    # -- people and pages ------------------------------------------------------------------------

    def arrive(self, secret: str, name: str | None = None) -> Person:
        """Return the person who opens a page."""
        person = self.people.arrive(secret, name)
        self.control.welcome_back(person)
        return person

    def rename(self, person: Person, name: str) -> None:
        """Give a person another name."""
        self.people.rename(person, name)
        self.control.welcome_back(person)

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state, for a page that opens."""
        return {
            "kind": "fleet",
            "now": self.clock(),
            "about": {**self.about, **self.journal.faults(), "on_lost": self.on_lost},
            "agents": [agent.to_dict(trend=True) for agent in self.agents],
            "recent": [entry.to_dict() for entry in self.journal.recent],
            "people": self.people.present(),
        }

    def close(self) -> None:
        """Close all connections of agents and log the end."""
        for agent in self.agents:
            if agent.link is not None:
                agent.link.close("the server has stopped")
        self._record("server-stopped")

    # -- internals -------------------------------------------------------------------------------

    def _call_of(self, agent: Agent, report: Report) -> Call:
        """Return what the caller says of a decision."""
        now = self.clock()
        return self.caller.see(
            agent.index, now, agent.margin, agent.proxy, wanted=report.call, reward=report.reward,
            state=report.state or None, quiet=agent.holder is not None or now < agent.snoozed_until,
        )  # fmt: skip

    def _update_call(self, agent: Agent, report: Report, call: Call) -> None:
        if report.void and not agent.void:
            self._record("drift", agent, why=report.why)
        why, agent.void, agent.why = agent.why, report.void, report.why
        if agent.calling and call.on:
            agent.why = report.why or why  # the call lasts longer than its reason
        if agent.calling and (call.began or not call.on):
            self.journal.end_call(agent, report.why)
        if call.on and not agent.calling:
            agent.calling, agent.called_since = True, self.clock()
            agent.cause, agent.seen_by = call.cause, ""
            agent.calls += 1
            picture = None
            if agent.called_since - agent.pictured_call >= CALL_PICTURES:
                agent.pictured_call, picture = agent.called_since, agent.picture
            cause = None if call.cause == "margin" else call.cause
            self._record("call", agent, picture=picture, cause=cause, **situation(agent))
            agent.tell({"kind": "called", "why": report.why})

    def _show_at_once(self, agent: Agent) -> None:
        """Send what a person acts upon now, instead of with the next round."""
        for page in self.pages:
            if page.looks_at == agent.index:
                if agent.index in self.journal.news.pictured:
                    page.send(agent.picture_message())
                page.send({"kind": "seen", **agent.seen()})

    def _add(self, agent: Agent) -> Agent:
        agent.index = len(self.agents)
        self.agents.append(agent)
        self._names[agent.name] = agent
        return agent


def _judged(agent: Agent, report: Report, before: Report | None) -> Report:
    """Judge scores by the server's own monitor; `before` is the same decision, judged earlier."""
    if before is not None:
        return replace(before, waits=report.waits)
    if agent.monitor is None:
        raise InvalidInput(
            "this server has no margins file, so a decision needs its margin; start the server "
            "with one, or give the agent a monitor"
        )
    if agent.monitor.needs_features:
        raise InvalidInput(
            "the server's margins use a learned proxy, which the scores alone do not give: let the "
            "agent judge its own decisions with a Monitor of its own"
        )
    return replace(report, **agent.monitor.step(np.array(report.scores)).report())
