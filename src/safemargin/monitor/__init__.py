"""Live oversight: scores → proxy → margin → call.

`monitor` decides with `live_proxy`, `decisions` and `drift` (on a `reservoir` of decisions), and
needs only numpy. `overseen` runs an agent beside it, `overseers` act on its calls,
`evaluation_watch` is a Stable-Baselines3 callback, and `notifications` reach people. `remote`,
`steering` and `pictures` connect an agent to a watched fleet, whose log is `audit`. `simulation`,
`attention` and `attention_plot` say what calling would have cost and caught on a study.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.monitor.audit import AuditLog
    from safemargin.monitor.decisions import Decision, Decisions, Event
    from safemargin.monitor.drift import Drift
    from safemargin.monitor.evaluation_watch import EvaluationWatch
    from safemargin.monitor.monitor import Monitor
    from safemargin.monitor.notifications import Command, Webhook
    from safemargin.monitor.overseen import Overseen, Question, oversee
    from safemargin.monitor.overseers import Lookahead, OtherPolicy, Terminal
    from safemargin.monitor.remote import RemoteOverseer
    from safemargin.monitor.simulation import simulate_oversight

__all__ = [
    "AuditLog",
    "Command",
    "Decision",
    "Decisions",
    "Drift",
    "EvaluationWatch",
    "Event",
    "Lookahead",
    "Monitor",
    "OtherPolicy",
    "Overseen",
    "Question",
    "RemoteOverseer",
    "Terminal",
    "Webhook",
    "oversee",
    "simulate_oversight",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AuditLog": "audit",
        "Command": "notifications",
        "Decision": "decisions",
        "Decisions": "decisions",
        "Drift": "drift",
        "EvaluationWatch": "evaluation_watch",
        "Event": "decisions",
        "Lookahead": "overseers",
        "Monitor": "monitor",
        "OtherPolicy": "overseers",
        "Overseen": "overseen",
        "Question": "overseen",
        "RemoteOverseer": "remote",
        "Terminal": "overseers",
        "Webhook": "notifications",
        "oversee": "overseen",
        "simulate_oversight": "simulation",
    },
)
