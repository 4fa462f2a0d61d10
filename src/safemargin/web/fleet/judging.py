"""The server's own monitor judges the decisions of agents that report scores only."""

from __future__ import annotations

import math
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
    return with_decision(report, agent.monitor.step(np.array(report.scores)))


def with_decision(report: Report, decision: Decision) -> Report:
    """Return the report with what a monitor decided."""
    return replace(
        report,
        margin=decision.margin,
        proxy=decision.proxy if math.isfinite(decision.proxy) else None,
        call=decision.call,
        outside=decision.outside,
        muted=decision.muted,
        void=decision.void,
        why=decision.why if decision.call or decision.outside or decision.void else "",
    )
