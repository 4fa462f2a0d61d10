"""A fleet of agents that people watch.

state       the fleet: agents come, decide and go; scores without margins are judged
control     who has which agent, what people do with it, and how often agents send pictures
answers     what people do about calls: seen, snoozed, handed over
agents, people, track, news
            one agent, one person, an agent's last decisions, what pages do not know yet
journal     what is logged and shown on pages; restore reads it after a restart
messages    what agents and pages may send; fields checks it
local       agents that run beside the server; rehearsal forecasts their calls
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.web.fleet.state import Fleet as Fleet

__getattr__, __dir__, __all__ = lazy_names(__name__)
