"""Live oversight: scores → proxy → margin → call.

`monitor` decides with `live_proxy`, `decisions` and `drift` (on a `reservoir` of decisions), and
needs only numpy. `caller` decides which of a team's decisions call a person: `calls` are what it
knows of them, `bank` holds the budget, `threshold` adapts, `stuck` watches for agents without
progress, `forecast` says what to expect. `overseen` runs an agent, `overseers` act on calls,
`evaluation_watch` is a Stable-Baselines3 callback, and `notifications` reach people. `remote`,
`steering` and `pictures` connect an agent to a watched fleet; its log is `audit`, in a `log_file`
under `seals`. `simulation`, `attention` and `attention_plot` say what calling would have cost and
caught on a study, `ranking` what people see who follow a ranking of decisions, and `failures` what
there is to catch. `recorded` looks margins up along the episodes of a dataset. `attack` plays games
in which `attackers` strike at the steps that a ranking of `timing` names, `attack_plot` draws what
that costs, and a `mask` learns where blinding an agent costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.monitor.audit import AuditLog as AuditLog
    from safemargin.monitor.caller import Caller as Caller
    from safemargin.monitor.calls import Call as Call
    from safemargin.monitor.decisions import Decision as Decision
    from safemargin.monitor.decisions import Decisions as Decisions
    from safemargin.monitor.decisions import Event as Event
    from safemargin.monitor.drift import Drift as Drift
    from safemargin.monitor.evaluation_watch import EvaluationWatch as EvaluationWatch
    from safemargin.monitor.monitor import Monitor as Monitor
    from safemargin.monitor.notifications import Command as Command
    from safemargin.monitor.notifications import Webhook as Webhook
    from safemargin.monitor.overseen import Overseen as Overseen
    from safemargin.monitor.overseen import Question as Question
    from safemargin.monitor.overseen import oversee as oversee
    from safemargin.monitor.overseers import Lookahead as Lookahead
    from safemargin.monitor.overseers import OtherPolicy as OtherPolicy
    from safemargin.monitor.overseers import Terminal as Terminal
    from safemargin.monitor.remote import RemoteOverseer as RemoteOverseer
    from safemargin.monitor.simulation import simulate_oversight as simulate_oversight
    from safemargin.monitor.stuck import Stuck as Stuck

__getattr__, __dir__, __all__ = lazy_names(__name__)
