"""The server's own monitor judges the decisions of agents that report scores only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from safemargin.errors import InvalidInput
from safemargin.monitor.decisions import Decision
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.messages import Report


def judge(agent: Agent, report: Report, before: Report | None) -> Report:
    """Return the report with margin and call; `before` is the same decision, judged earlier."""
    if before is not None:
        return replace(before, waits=report.waits)
    if agent.monitor is None:
        raise InvalidInput(
            "this server has no margins file, so a decision needs its margin; start the server "
            "with one, or give the agent a monitor"
        )
    if agent.monitor.needs_features:
        raise InvalidInput(
            "the server's margins use a learned proxy, which the scores alone do not give: let the "
            "agent judge its own decisions, RemoteOverseer(…, monitor=Monitor(margins))"
        )
    decision: Decision = agent.monitor.step(np.array(report.scores))
    return replace(report, **decision.report())
