"""What the fleet logs, and what open pages are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from safemargin.errors import AuditLogError, InvalidInput
from safemargin.monitor.audit import AuditLog, Entry
from safemargin.monitor.decisions import Event
from safemargin.monitor.notifications import Notifier
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.people import Person

RECENT = 60
"""Entries that a page shows when it opens."""


class Page(Protocol):
    """One open page."""

    person: Person
    looks_at: int | None

    def send(self, message: dict[str, Any] | str | bytes) -> None:
        """Tell the page; never waits."""


class Journal:
    """Writes entries to the log and to all pages."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log
        self.fault = ""
        """Why the last entry could not be written."""
        self.recent: list[Entry] = []
        self.fresh: list[Entry] = []
        """Entries that pages have not been told of."""
        self.pages: set[Page] = set()
        self.listeners: list[Callable[[Event], Any]] = []
        """Called with calls, their ends and drift, as those of a monitor are."""

        self._told_faults = self.faults()

    def faults(self) -> dict[str, str]:
        """What does not work now: writing the log, telling people who do not look."""
        failing = [
            f"the {type(each).__name__.lower()}"
            for each in self.listeners
            if isinstance(each, Notifier) and each.failing
        ]
        verb = "fails" if len(failing) == 1 else "fail"
        told = f"{' and '.join(failing)} {verb}" if failing else ""
        return {"log_fault": self.fault, "notify_fault": told}

    def tell_faults(self) -> None:
        """Tell all pages, if something else works or does not work than the last time."""
        faults = self.faults()
        if faults != self._told_faults:
            self._told_faults = faults
            self._to_all({"kind": "faults", **faults})

    def record(
        self,
        kind: str,
        agent: Agent | None = None,
        *,
        person: str | None = None,
        picture: bytes | None = None,
        must: bool = False,
        **details: Any,
    ) -> None:
        """Log it; what people do (`must`) is refused where it cannot be logged."""
        report = None if agent is None else agent.report
        if agent is not None and kind in ("call", "release", "drift"):
            self._notify(kind, agent, str(details.get("why") or ""))
        try:
            entry = self.log.add(
                kind,
                None if agent is None else agent.name,
                episode=None if report is None else report.episode,
                step=None if report is None else report.step,
                person=person,
                picture=picture,
                **{name: value for name, value in details.items() if value is not None},
            )
        except AuditLogError as error:
            if not self.fault:
                self._to_all({"kind": "note", "text": f"The log is not written: {error}"})
            self.fault = str(error)
            if must:
                raise InvalidInput(f"not done, since it cannot be logged: {error}") from error
            return
        self.fault = ""
        self.recent = [*self.recent[-RECENT + 1 :], entry]
        if self.pages:
            self.fresh.append(entry)

    def tell(self, person: Person, text: str) -> None:
        """One sentence to all pages of a person."""
        for page in self.pages:
            if page.person is person:
                page.send({"kind": "note", "text": text})

    def _notify(self, kind: Any, agent: Agent, why: str) -> None:
        step = 0 if agent.report is None else agent.report.step
        event = Event(kind, agent.index, step, agent.margin, agent.proxy, f"{agent.name}: {why}")
        for listener in self.listeners:
            listener(event)

    def _to_all(self, message: dict[str, Any]) -> None:
        for page in self.pages:
            page.send(message)


def situation(agent: Agent) -> dict[str, Any]:
    """What was known at the decision, for the log."""
    report = agent.report
    if report is None:
        return {}
    return {
        "margin": agent.margin,
        "proxy": agent.proxy,
        "scores": agent.finite_scores,
        "first_action": agent.hello.first_action or None,
        "proposed": report.proposed,
        "proposed_name": agent.action_name(report.proposed),
        **({"why": report.why} if report.why else {}),
    }
