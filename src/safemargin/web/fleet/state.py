"""The true state of a watched fleet: who calls, who has which agent, and what is logged of it.

All of it is used from one thread, the server's; nothing here waits. What a person does is in the
log before the agent hears of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.monitor.audit import AuditLog
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.steering import OnLost
from safemargin.web.fleet.agents import Agent, Link, Status
from safemargin.web.fleet.journal import Journal, situation
from safemargin.web.fleet.judging import judged
from safemargin.web.fleet.messages import Hello, Report, read_action
from safemargin.web.fleet.people import People, Person
from safemargin.web.fleet.pictures import pace_pictures
from safemargin.web.fleet.restore import Restored, restore
from safemargin.web.fleet.track import CALL, HUMAN, MUTED, OUTSIDE, VOID

GRACE = 20.0
"""Seconds that a person may be without a page before `on_lost` holds for their agents."""
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
    ) -> None:
        """`make_monitor`: for agents that report scores only. `about`: what pages show of it all.

        `on_lost` is what becomes of an agent whose person has been gone for `grace` seconds.
        """
        self.journal = Journal(log)
        self._record = self.journal.record
        self.pages = self.journal.pages
        self.make_monitor = make_monitor
        self.on_lost = on_lost
        self.grace = grace
        self.about = about or {}
        self.most_agents = most_agents
        self.agents: list[Agent] = []
        self.people = People()
        self.changed: set[int] = set()
        self.rows: list[tuple[Any, ...]] = []
        """Decisions since the last `drain`: index, episode, step, margin, proxy, flags."""
        self.pictured: set[int] = set()
        self.decisions = 0
        self._names: dict[str, Agent] = {}
        for name, known in restore(log).items():
            self._bring_back(name, known)
        self._record("server-started", **self.about)

    # -- agents --------------------------------------------------------------------------------

    def join(self, hello: Hello, link: Link) -> Agent:
        """An agent has come, or has come back; InvalidInput where it must not."""
        monitor = self._monitor_for(hello)
        known = self._names.get(hello.name)
        if known is None:
            if len(self.agents) >= self.most_agents:
                raise InvalidInput(f"there are {self.most_agents} agents already, no more fit in")
            agent = Agent(len(self.agents), hello)
            self.agents.append(agent)
            self._names[hello.name] = agent
            kind = "joined"
        else:
            agent = known
            if agent.link is not None:
                if agent.hello.instance != hello.instance:
                    raise InvalidInput(
                        f"an agent named {hello.name!r} is connected already; give this one "
                        "another name"
                    )
                agent.link.close("the same agent has connected anew")
            kind = "back"
        if agent.monitor is None or agent.hello.policy != hello.policy:
            agent.monitor = monitor  # else the old one, which knows what it has seen
        if agent.stopped and agent.hello.instance == hello.instance:
            agent.stop_due = agent.stopped  # it is here all the same, so it did not hear of it
        agent.stopped = ""
        agent.hello, agent.link = hello, link
        agent.status, agent.reason, agent.waiting = "live", "", False
        agent.actions = agent.actions or len(hello.action_names)
        agent.heard_at = time.time()
        agent.paced = agent.dismissed = False
        self._record(kind, agent, policy=hello.policy, environment=hello.environment)
        self._changed(agent)
        held = agent.control is not None or bool(agent.stop_due)
        link.send({"kind": "welcome", "taken": held})
        self._stop_where_due(agent)
        if agent.control is not None:
            link.send({"kind": "taken", "by": agent.control.name})
        self.pace_pictures()
        return agent

    def introduce(self, agent: Agent, hello: Hello) -> None:
        """An agent knows more about itself than when it came, e.g. what its actions are called."""
        agent.hello = replace(
            agent.hello, action_names=hello.action_names, first_action=hello.first_action
        )
        agent.actions = len(hello.action_names) or agent.actions
        self._changed(agent)

    def _monitor_for(self, hello: Hello) -> Monitor | None:
        if self.make_monitor is None:
            return None
        monitor = self.make_monitor()
        if hello.policy is not None:
            monitor.check(hello.policy)
        return monitor

    def depart(self, agent: Agent, link: Link, status: Status, reason: str = "") -> None:
        """An agent is gone: it left, died, or its connection broke off (lost)."""
        if agent.link is not link:
            return  # it has a new connection
        if agent.control is not None and status == "lost":
            reason += UNCONFIRMED if agent.unconfirmed else ""
            self.journal.tell(agent.control, f"{agent.name}, which you steer, is lost: {reason}")
        agent.link, agent.status, agent.reason, agent.waiting = None, status, reason, False
        agent.unconfirmed = False
        if agent.monitor is not None:
            agent.monitor.end_episode(counted=False)
        self._record(status, agent, why=reason or None)
        if status in ("left", "died"):
            self._end_call(agent, "it is gone")
            agent.stop_due = agent.stopped = ""
            if agent.control is not None:
                self._free(agent, f"it {status}")
        self._changed(agent)
        self.pace_pictures()

    def report(self, agent: Agent, report: Report) -> None:
        """One decision; the same one again only says anew whether the agent waits."""
        before = agent.report
        again = before is not None and (before.episode, before.step) == (
            report.episode,
            report.step,
        )
        if report.margin is None:
            report = judged(agent, report, before if again else None)
        agent.unconfirmed = agent.unconfirmed and again
        agent.report = report
        agent.margin, agent.proxy = report.margin or 0, report.proxy
        agent.heard_at = time.time()
        if agent.actions == 0 and report.scores is not None and not agent.hello.dimensions:
            agent.actions = len(report.scores)
            self._changed(agent)
        held = agent.control is not None
        flags = (
            (CALL if report.call else 0)
            | (OUTSIDE if report.outside else 0)
            | (HUMAN if held else 0)
            | (VOID if report.void else 0)
            | (MUTED if report.muted else 0)
        )
        row = (report.episode, report.step, agent.margin, report.proxy, flags)
        if not again:
            agent.track.add(*row)
            self.decisions += 1
            if self.pages:
                self.rows.append((agent.index, *row))
        if report.void and not agent.void:
            self._record("drift", agent, why=report.why)
        agent.void = report.void
        agent.why = report.why
        if report.call and not agent.calling:
            self._begin_call(agent)
        elif agent.calling and not report.call:
            self._end_call(agent, report.why)
        if report.waits != agent.waiting:
            agent.waiting = report.waits and held
            self._changed(agent)
        if agent.waiting:
            self._show_at_once(agent)
        if report.waits and not held and agent.link is not None:
            agent.link.send({"kind": "free"})  # the news crossed its question

    def see(self, agent: Agent, step: int, picture: bytes) -> None:
        """A picture of what the agent sees."""
        if agent.picture is None:
            self._changed(agent)
        agent.picture, agent.picture_step = picture, step
        self.pictured.add(agent.index)

    def end_episode(self, agent: Agent) -> None:
        """Its episode is over; the next decision begins another."""
        self._end_call(agent, "the episode has ended")
        if agent.monitor is not None:
            agent.monitor.end_episode()

    def _begin_call(self, agent: Agent) -> None:
        agent.calling, agent.called_since = True, time.time()
        agent.calls += 1
        picture = None
        if agent.called_since - agent.pictured_call >= CALL_PICTURES:
            agent.pictured_call, picture = agent.called_since, agent.picture
        self._record("call", agent, picture=picture, **situation(agent))
        self._changed(agent)

    def _end_call(self, agent: Agent, why: str) -> None:
        if agent.calling:
            agent.calling = False
            self._record("release", agent, why=why)
            self._changed(agent)

    # -- people --------------------------------------------------------------------------------

    def arrive(self, secret: str, name: str | None = None) -> Person:
        """Somebody opens a page."""
        person = self.people.arrive(secret, name)
        self._touch(person)
        return person

    def rename(self, person: Person, name: str) -> None:
        """Somebody is called something else from now on."""
        self.people.rename(person, name)
        self._touch(person)

    def _touch(self, person: Person) -> None:
        for agent in self.agents:
            if agent.control is person:
                agent.reason = ""
                self._changed(agent)

    def take(self, person: Person, agent: Agent, *, force: bool = False) -> None:
        """Somebody wants the agent. The first one has it; the second one and the first are told."""
        holder = agent.control
        if holder is person:
            return
        if agent.status != "live":
            raise InvalidInput(f"{agent.name} cannot be taken over: it is {agent.status}")
        if holder is not None and not force:
            self._record(
                "refused", agent, person=person.name, must=True, why=f"{holder.name} has it already"
            )
            self.journal.tell(holder, f"{person.name} wants {agent.name}, too. You have it.")
            raise InvalidInput(
                f"{holder.name} took {agent.name} over before you. It is theirs until they hand "
                "it back; Shift+T takes it from them."
            )
        details = situation(agent) | {"identity": person.identity}
        if holder is not None:
            details["why"] = f"taken from {holder.name}"
        self._record(
            "taken", agent, person=person.name, must=True, picture=agent.picture, **details
        )
        if holder is not None:
            self.journal.tell(holder, f"{person.name} took {agent.name} from you.")
        agent.control, agent.held_since = person, time.time()
        agent.stop_due = agent.stopped = ""
        if agent.link is not None:
            agent.link.send({"kind": "taken", "by": person.name})
        self._changed(agent)
        self.pace_pictures()

    def act(self, person: Person, agent: Agent, episode: int, step: int, action: Any) -> None:
        """A person's action for the decision that waits; None: as the agent wants."""
        if agent.control is not person:
            raise InvalidInput(f"{agent.name} is not yours to steer; take it over first")
        report = agent.report
        if not agent.waiting or report is None or (report.episode, report.step) != (episode, step):
            raise InvalidInput(f"too late: {agent.name} does not wait for this action; not done")
        action = read_action(action, agent.hello, agent.actions)
        if agent.link is None or not agent.link.takes():
            raise InvalidInput(f"too late: {agent.name} cannot be reached any more; not done")
        taken = report.proposed if action is None else action
        self._record(
            "action",
            agent,
            person=person.name,
            must=True,
            picture=agent.picture if agent.picture_step == step else None,
            **situation(agent)
            | {
                "action": taken,
                "action_name": agent.action_name(taken),
                "own": action is None,
                "overruled": action is not None and action != report.proposed,
            },
        )
        agent.waiting = False
        agent.human_actions += 1
        agent.unconfirmed = True
        agent.link.send({"kind": "action", "episode": episode, "step": step, "action": action})
        self._changed(agent)

    def hand_back(self, person: Person, agent: Agent) -> None:
        """The agent acts by itself again."""
        if agent.control is not person:
            raise InvalidInput(f"{agent.name} is not yours to hand back")
        self._free(agent, "")

    def dismiss(self, person: Person, agent: Agent) -> None:
        """An agent that is gone is shown no longer, until it comes back."""
        if agent.status == "live":
            raise InvalidInput(f"{agent.name} is live; only an agent that is gone can be dismissed")
        holder = agent.control
        if holder not in (None, person) and holder.gone_since is None:
            raise InvalidInput(f"{agent.name} belongs to {holder.name}, who waits for it")
        if holder is not None:
            self._free(agent, "")
        self._record("dismissed", agent, person=person.name, must=True)
        agent.dismissed, agent.stopped = True, ""
        self._changed(agent)

    def _free(self, agent: Agent, why: str) -> None:
        holder = agent.control
        self._record("handed-back", agent, person=holder.name if holder else None, why=why or None)
        agent.control, agent.waiting = None, False
        if agent.link is not None:
            agent.link.send({"kind": "free"})
        self._changed(agent)
        self.pace_pictures()

    def mind_absence(self, now: float | None = None) -> None:
        """People who have been gone for too long: their agents do as `on_lost` says."""
        moment = time.time() if now is None else now
        for agent in self.agents:
            self._stop_where_due(agent)
            holder = agent.control
            if holder is None or holder.gone_since is None:
                continue
            if moment - holder.gone_since < self.grace:
                continue
            why = f"{holder.name} has been gone for {self.grace:g} s"
            if self.on_lost == "go-on":
                self._free(agent, why)
            elif self.on_lost == "stop":
                agent.control, agent.stop_due = None, why
                self._stop_where_due(agent)
                if agent.stop_due:
                    self._record("stop-due", agent, person=holder.name, why=why)
                self._changed(agent)
            elif agent.reason != why:
                agent.reason = why
                self._record("absent", agent, person=holder.name, why=why)
                self._changed(agent)

    def _stop_where_due(self, agent: Agent) -> None:
        """Tell an agent that is to stop, if it can be told now."""
        if agent.stop_due and agent.link is not None and agent.link.takes():
            why, agent.stopped, agent.stop_due = agent.stop_due, agent.stop_due, ""
            self._record("stopped", agent, why=why)
            agent.link.send({"kind": "stop", "why": why})
            self._changed(agent)

    # -- pages ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state, for a page that opens."""
        return {
            "kind": "fleet",
            "now": time.time(),
            "about": {**self.about, **self.journal.faults(), "on_lost": self.on_lost},
            "agents": [agent.to_dict(trend=True) for agent in self.agents],
            "recent": [entry.to_dict() for entry in self.journal.recent],
        }

    def pace_pictures(self) -> None:
        """Tell agents how often somebody wants to see a picture of them."""
        pace_pictures(self.agents, self.pages)

    def _show_at_once(self, agent: Agent) -> None:
        """A person steers: what they act upon does not wait for the next round."""
        for page in self.pages:
            if page.looks_at == agent.index:
                if agent.index in self.pictured:
                    page.send(agent.picture_message())
                page.send({"kind": "seen", **agent.seen()})

    def close(self) -> None:
        """The server ends in good order."""
        for agent in self.agents:
            if agent.link is not None:
                agent.link.close("the server has stopped")
        self._record("server-stopped")

    # -- inside --------------------------------------------------------------------------------

    def _changed(self, agent: Agent) -> None:
        self.changed.add(agent.index)

    def _bring_back(self, name: str, known: Restored) -> None:
        agent = Agent(len(self.agents), Hello(name, ""), status="lost", reason=known.reason)
        agent.calls, agent.human_actions = known.calls, known.human_actions
        agent.stop_due, agent.dismissed = known.stop_due, known.dismissed
        if known.holder is not None:
            agent.control = self.people.remember(known.identity, known.holder)
            agent.held_since = known.held_since
        self.agents.append(agent)
        self._names[name] = agent
