"""What a restarted server knows from the log of the one before it."""

from __future__ import annotations

from safemargin.monitor.audit import AuditLog
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import Hello
from safemargin.web.fleet.people import Person


def restore(log: AuditLog) -> list[Agent]:
    """Return the agents that neither left nor died before the last server ended.

    They are lost until they come back. Whoever had taken one over still has it, and a stop that
    was due still is.
    """
    agents: dict[str, Agent] = {}
    for entry in log:
        name = entry.agent
        if name is None:
            continue
        if entry.kind in ("left", "died"):
            agents.pop(name, None)
        elif entry.kind in ("joined", "back"):
            if name not in agents:
                why = "not back since the server restarted"
                agents[name] = Agent(Hello(name), status="lost", reason=why)
            agents[name].dismissed = False
        elif entry.kind == "dismissed" and name in agents:
            agents[name].dismissed = True
            if not agents[name].stop_due:
                del agents[name]
        agent = agents.get(name)
        if agent is None:  # an entry about one that is gone, e.g. that its call has ended
            continue
        if entry.kind == "call":
            agent.calls += 1
        elif entry.kind in ("snoozed", "woken"):
            agent.snoozed_until = float(entry.details.get("until", 0.0))
        elif entry.kind == "action":
            agent.human_actions += 1
        elif entry.kind == "taken" or (entry.kind == "handed-over" and "identity" in entry.details):
            name = entry.person if entry.kind == "taken" else entry.details.get("to")
            agent.holder = Person(str(entry.details.get("identity", "")), str(name or ""))
            agent.held_since, agent.stop_due = entry.time, ""
        elif entry.kind in ("handed-back", "stop-due", "stopped"):
            agent.holder = None
            agent.stop_due = str(entry.details["why"]) if entry.kind == "stop-due" else ""
    return list(agents.values())


def calls_before(log: AuditLog) -> tuple[list[float], float]:
    """Return when earlier servers' calls began, and the end, in seconds in which a server ran.

    Random looks are not among them: they have a budget of their own.
    """
    calls: list[float] = []
    ran, before = 0.0, None
    for entry in log:
        if before is not None and entry.kind != "server-started":
            ran += max(entry.time - before, 0.0)
        before = entry.time
        if entry.kind == "call" and entry.details.get("cause") != "look":
            calls.append(ran)
    return calls, ran
