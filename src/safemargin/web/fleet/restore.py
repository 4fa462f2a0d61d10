"""What a restarted server knows from the log of the one before it."""

from __future__ import annotations

from dataclasses import dataclass

from safemargin.monitor.audit import AuditLog


@dataclass(slots=True)
class Restored:
    """An agent that was in the fleet when the last server ended."""

    reason: str
    calls: int = 0
    human_actions: int = 0
    holder: str | None = None
    """Who had it."""
    identity: str = ""
    held_since: float = 0.0
    stop_due: str = ""
    dismissed: bool = False


def restore(log: AuditLog) -> dict[str, Restored]:
    """Return, by name, the agents that neither left nor died before the last server ended.

    They are lost until they come back. Whoever had taken one over still has it, and a stop that
    was due still is.
    """
    agents: dict[str, Restored] = {}
    for entry in log:
        name = entry.agent
        if name is None:
            continue
        if entry.kind in ("left", "died"):
            agents.pop(name, None)
        elif entry.kind in ("joined", "back"):
            agents.setdefault(name, Restored("not back since the server restarted"))
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
        elif entry.kind == "action":
            agent.human_actions += 1
        elif entry.kind == "taken":
            agent.holder, agent.held_since = entry.person, entry.time
            agent.identity = str(entry.details.get("identity", ""))
            agent.stop_due = ""
        elif entry.kind in ("handed-back", "stop-due", "stopped"):
            agent.holder = None
            agent.stop_due = str(entry.details["why"]) if entry.kind == "stop-due" else ""
    return agents
