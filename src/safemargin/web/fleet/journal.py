"""What the fleet writes to its log, and what it tells open pages about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from safemargin.errors import AuditLogError, InvalidInput
from safemargin.monitor.audit import AuditLog, Entry
from safemargin.monitor.decisions import Event
from safemargin.monitor.notifications import Notifier
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.news import News
from safemargin.web.fleet.people import Person

RECENT = 60
"""How many entries a page shows when it opens."""


class Page(Protocol):
    """One open page."""

    person: Person
    looks_at: int | None

    def send(self, message: dict[str, Any] | bytes) -> None:
        """Send a message to the page without waiting."""


class Journal:
    """Writes entries to the log and collects what is new for pages."""

    def __init__(self, log: AuditLog, clock: Callable[[], float] = time.time) -> None:
        self.log = log
        self.clock = clock
        """Seconds since 1970, for entries and for everything that lasts."""
        self.fault = ""
        """Why the last entry could not be written."""
        self.recent: list[Entry] = []
        self.news = News()
        """What pages have not been sent yet."""
        self.pages: set[Page] = set()
        self.listeners: list[Callable[[Event], Any]] = []
        """Called when a call begins or ends and on drift, like the listeners of a monitor."""
        self._shown_faults = self.faults()

    def faults(self) -> dict[str, str]:
        """Return what does not work now: writing the log, notifying people away from the page."""
        failing = [
            f"the {type(each).__name__.lower()}"
            for each in self.listeners
            if isinstance(each, Notifier) and each.failing
        ]
        verb = "fails" if len(failing) == 1 else "fail"
        notify = f"{' and '.join(failing)} {verb}" if failing else ""
        return {"log_fault": self.fault, "notify_fault": notify}

    def show_faults(self) -> None:
        """Send the faults to all pages if they have changed."""
        faults = self.faults()
        if faults != self._shown_faults:
            self._shown_faults = faults
            self._send_to_all({"kind": "faults", **faults})

    def changed(self, agent: Agent) -> None:
        """Note that pages need the agent's new state."""
        self.news.changed.add(agent.index)

    def record(
        self, kind: str, agent: Agent | None = None, *, must: bool = False, **details: Any
    ) -> None:
        """Write an entry; with `must`, raise InvalidInput if it cannot be written.

        Of the details, `person` and `picture` have fields of their own; None says nothing.

        What is worth an entry changes the agent, so pages need its new state.
        """
        known = {name: value for name, value in details.items() if value is not None}
        if agent is not None:
            self.changed(agent)
            if kind in ("call", "release", "drift"):
                self._notify(kind, agent, str(details.get("why") or ""))
            if agent.report is not None:
                known |= {"episode": agent.report.episode, "step": agent.report.step}
        name = None if agent is None else agent.name
        try:
            entry = self.log.add(kind, name, when=self.clock(), **known)
        except AuditLogError as error:
            if not self.fault:
                self._send_to_all({"kind": "note", "text": f"The log cannot be written: {error}"})
            self.fault = str(error)
            if must:
                raise InvalidInput(f"not done, because it cannot be logged: {error}") from error
            return
        self.fault = ""
        self.recent = [*self.recent[-RECENT + 1 :], entry]
        if self.pages:
            self.news.entries.append(entry.to_dict())

    def end_call(self, agent: Agent, why: str) -> None:
        """Record that the agent is no longer calling."""
        if agent.calling:
            agent.calling, agent.cause, agent.seen_by = False, "", ""
            self.record("release", agent, why=why)

    def notify(self, person: Person, text: str) -> None:
        """Show a sentence on all pages of one person."""
        for page in self.pages:
            if page.person is person:
                page.send({"kind": "note", "text": text})

    def _notify(self, kind: Any, agent: Agent, why: str) -> None:
        step = 0 if agent.report is None else agent.report.step
        event = Event(kind, agent.index, step, agent.margin, agent.proxy, f"{agent.name}: {why}")
        for listener in self.listeners:
            listener(event)

    def _send_to_all(self, message: dict[str, Any]) -> None:
        for page in self.pages:
            page.send(message)


def situation(agent: Agent) -> dict[str, Any]:
    """Return what was known at the agent's last decision, for the log."""
    report = agent.report
    if report is None:
        return {}
    return {
        "margin": agent.margin,
        "proxy": agent.proxy,
        "scores": agent.finite_scores,
        "first_action": agent.hello.first_action or None,
        **({"action_names": list(names)} if (names := agent.hello.action_names) else {}),
        "proposed": report.proposed,
        "proposed_name": agent.action_name(report.proposed),
        **({"why": report.why} if report.why else {}),
    }
