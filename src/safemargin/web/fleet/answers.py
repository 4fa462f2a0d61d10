"""What people do about calls: they have seen one, want none for a while, or hand one over."""

from __future__ import annotations

from dataclasses import dataclass

from safemargin.core.text import counted
from safemargin.errors import InvalidInput
from safemargin.monitor.caller import Caller
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.control import Control
from safemargin.web.fleet.journal import Journal
from safemargin.web.fleet.people import People, Person


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Takes people's answers to calls. Each is logged before it takes effect."""

    agents: list[Agent]
    journal: Journal
    caller: Caller
    control: Control
    people: People

    def acknowledge(self, person: Person, agent: Agent) -> None:
        """Show everybody that this person has seen the agent's call."""
        if not agent.calling:
            raise InvalidInput(f"{agent.name} is no longer calling")
        if agent.seen_by:
            raise InvalidInput(f"{agent.seen_by} has seen this call of {agent.name} already")
        self.journal.record("acknowledged", agent, person=person.name, must=True)
        agent.seen_by = person.name
        self.caller.acknowledge(agent.index)

    def snooze(self, person: Person, agent: Agent, seconds: float) -> None:
        """End the agent's call, and let it begin none for this long; 0: it may call again."""
        now = self.journal.clock()
        if not seconds:
            if agent.snoozed_until <= now:
                raise InvalidInput(f"{agent.name} is not snoozed")
            self.journal.record("woken", agent, person=person.name, must=True)
            agent.snoozed_until = 0.0
            return
        why = (
            f"for {counted(round(seconds / 60), 'minute')}"
            if seconds >= 60
            else f"for {seconds:g} s"
        )
        until = now + seconds
        self.journal.record("snoozed", agent, person=person.name, must=True, until=until, why=why)
        agent.snoozed_until = until
        self.caller.end(agent.index)
        self.journal.end_call(agent, f"{person.name} snoozed it")

    def hand_over(self, person: Person, agent: Agent, to: str) -> None:
        """Give the agent that this person steers, or its call that they have seen, to another."""
        other = self.people.named(to)
        if other is None or other is person:
            raise InvalidInput(f"{to} has no page open; hand {agent.name} over to somebody who has")
        if agent.holder is person:
            self.control.hand_over(person, agent, other)
        elif agent.calling and agent.seen_by in ("", person.name):
            why = f"to {other.name}, to look at its call"
            self.journal.record("handed-over", agent, person=person.name, must=True, why=why)
            agent.seen_by = other.name
            self.caller.acknowledge(agent.index)
        else:
            raise InvalidInput(
                f"{agent.name} is not yours to hand over: steer it, or be the one who answers its "
                "call"
            )
        self.journal.notify(other, f"{person.name} hands {agent.name} over to you.")
