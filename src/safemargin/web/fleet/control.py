"""Who has which agent: taking over, acting, handing back, and people who go away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.monitor.steering import OnLost
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.journal import Journal, situation
from safemargin.web.fleet.messages import read_action
from safemargin.web.fleet.people import Person

FASTEST = 0.25
"""Seconds between two pictures on a tile, at least."""
TILES_PER_SECOND = 40
"""Pictures a second of all agents together; one that somebody looks at sends every picture."""


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """Lets people steer agents. What a person does is logged before the agent hears of it."""

    agents: list[Agent]
    journal: Journal
    on_lost: OnLost
    grace: float

    def take(self, person: Person, agent: Agent, *, force: bool = False) -> None:
        """Give the agent to a person; with `force`, even if somebody else has it."""
        holder = agent.holder
        if holder is person:
            return
        if agent.status != "live":
            raise InvalidInput(f"{agent.name} cannot be taken over: it is {agent.status}")
        record = self.journal.record
        if holder is not None and not force:
            why = f"{holder.name} has it already"
            record("refused", agent, person=person.name, must=True, why=why)
            self.journal.notify(holder, f"{person.name} wants {agent.name}, too. You have it.")
            raise InvalidInput(
                f"{holder.name} took {agent.name} over before you. It is theirs until they hand "
                "it back; Shift+T takes it from them."
            )
        details = situation(agent) | {"identity": person.identity}
        if holder is not None:
            details["why"] = f"taken from {holder.name}"
        record("taken", agent, person=person.name, must=True, picture=agent.picture, **details)
        if holder is not None:
            self.journal.notify(holder, f"{person.name} took {agent.name} from you.")
        agent.stop_due = agent.stopped = ""
        self._give(agent, person)

    def act(self, person: Person, agent: Agent, episode: int, step: int, action: Any) -> None:
        """Answer the decision that waits with a person's action; None: the agent's own."""
        if agent.holder is not person:
            raise InvalidInput(f"{agent.name} is not yours to steer; take it over first")
        report = agent.report
        if not agent.waiting or report is None or (report.episode, report.step) != (episode, step):
            raise InvalidInput(f"too late: {agent.name} does not wait for this action; not done")
        action = read_action(action, agent.hello, agent.actions)
        if agent.link is None or not agent.link.takes():
            raise InvalidInput(f"too late: {agent.name} can no longer be reached; not done")
        taken = report.proposed if action is None else action
        details = situation(agent) | {
            "action": taken,
            "action_name": agent.action_name(taken),
            "own": action is None,
            "overruled": action is not None and action != report.proposed,
        }
        seen = agent.picture if agent.picture_step == step else None
        self.journal.record("action", agent, person=person.name, must=True, picture=seen, **details)
        agent.waiting = False
        agent.human_actions += 1
        agent.unconfirmed = True
        agent.link.send({"kind": "action", "episode": episode, "step": step, "action": action})

    def hand_back(self, person: Person, agent: Agent) -> None:
        """Let the agent act by itself again."""
        if agent.holder is not person:
            raise InvalidInput(f"{agent.name} is not yours to hand back")
        self.free(agent)

    def hand_over(self, person: Person, agent: Agent, other: Person) -> None:
        """Give the agent that this person steers to another one, who steers it from now on."""
        details = situation(agent) | {
            "identity": other.identity,
            "to": other.name,
            "why": f"to {other.name}",
        }
        self.journal.record("handed-over", agent, person=person.name, must=True, **details)
        self._give(agent, other)

    def _give(self, agent: Agent, person: Person) -> None:
        agent.holder, agent.held_since = person, self.journal.clock()
        agent.tell({"kind": "taken", "by": person.name})
        self.pace_pictures()

    def dismiss(self, person: Person, agent: Agent) -> None:
        """Hide an agent that is gone until it comes back."""
        if agent.status == "live":
            raise InvalidInput(f"{agent.name} is live; only an agent that is gone can be dismissed")
        holder = agent.holder
        if holder not in (None, person) and holder.gone_since is None:
            raise InvalidInput(f"{agent.name} belongs to {holder.name}, who waits for it")
        if holder is not None:
            self.free(agent)
        self.journal.record("dismissed", agent, person=person.name, must=True)
        agent.dismissed, agent.stopped = True, ""

    def free(self, agent: Agent, why: str | None = None) -> None:
        """Take the agent from whoever has it and let it act by itself."""
        holder = None if agent.holder is None else agent.holder.name
        self.journal.record("handed-back", agent, person=holder, why=why)
        agent.holder, agent.waiting = None, False
        agent.tell({"kind": "free"})
        self.pace_pictures()

    def welcome_back(self, person: Person) -> None:
        """Forget the absence of a person who has opened a page, or show their new name."""
        for agent in self.agents:
            if agent.holder is person:
                agent.reason = ""
                self.journal.changed(agent)

    def check_absence(self, now: float | None = None) -> None:
        """Apply `on_lost` to the agents of people who have been gone for `grace` seconds."""
        moment = time.time() if now is None else now
        for agent in self.agents:
            self.stop_if_due(agent)
            holder = agent.holder
            gone_since = None if holder is None else holder.gone_since
            if holder is None or gone_since is None or moment - gone_since < self.grace:
                continue
            why = f"{holder.name} has been gone for {self.grace:g} s"
            if self.on_lost == "go-on":
                self.free(agent, why)
            elif self.on_lost == "stop":
                agent.holder, agent.stop_due = None, why
                self.stop_if_due(agent)
                if agent.stop_due:
                    self.journal.record("stop-due", agent, person=holder.name, why=why)
            elif agent.reason != why:
                agent.reason = why
                self.journal.record("absent", agent, person=holder.name, why=why)

    def stop_if_due(self, agent: Agent) -> None:
        """Send the stop that is due, if the agent can be reached now."""
        if agent.stop_due and agent.link is not None and agent.link.takes():
            why, agent.stopped, agent.stop_due = agent.stop_due, agent.stop_due, ""
            self.journal.record("stopped", agent, why=why)
            agent.link.send({"kind": "stop", "why": why})

    def pace_pictures(self) -> None:
        """Tell agents how many seconds to leave between pictures; None: nobody looks."""
        pages = self.journal.pages
        linked = [(agent, agent.link) for agent in self.agents if agent.link is not None]
        tile = max(FASTEST, len(linked) / TILES_PER_SECOND) if pages else None
        looked_at = {page.looks_at for page in pages}
        for agent, link in linked:
            closely = agent.index in looked_at or agent.holder is not None
            every = 0.0 if closely else tile
            if agent.picture_every != every or not agent.paced:
                agent.picture_every, agent.paced = every, True
                link.send({"kind": "pictures", "every": every})
