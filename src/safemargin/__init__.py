"""How many mistakes can a reinforcement-learning agent afford right now?

The public names are loaded when first used, so that a lookup in a margins file needs numpy only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from safemargin.audit import AuditLog
    from safemargin.criticality import true_criticality
    from safemargin.doctor import Diagnosis, examine
    from safemargin.environments import register_state
    from safemargin.errors import SafemarginError
    from safemargin.hindsight import simulate_oversight
    from safemargin.margins import Margins, fit_margins
    from safemargin.monitor import Monitor
    from safemargin.overseen import Overseen, oversee
    from safemargin.planning import CostPlan, plan_study
    from safemargin.policies import load_policy
    from safemargin.policies.base import Policy
    from safemargin.proxies import register_proxy
    from safemargin.records import Episode, Estimate, Moment, Tuples
    from safemargin.remote_overseer import RemoteOverseer
    from safemargin.settings import Settings
    from safemargin.study import Study

_HOMES = {
    "AuditLog": "audit",
    "CostPlan": "planning",
    "Diagnosis": "doctor",
    "Episode": "records",
    "Estimate": "records",
    "Margins": "margins",
    "Moment": "records",
    "Monitor": "monitor",
    "Overseen": "overseen",
    "Policy": "policies.base",
    "RemoteOverseer": "remote_overseer",
    "SafemarginError": "errors",
    "Settings": "settings",
    "Study": "study",
    "Tuples": "records",
    "examine": "doctor",
    "fit_margins": "margins",
    "load_policy": "policies",
    "oversee": "overseen",
    "plan_study": "planning",
    "register_proxy": "proxies",
    "register_state": "environments",
    "simulate_oversight": "hindsight",
    "true_criticality": "criticality",
}

__all__ = [
    "AuditLog",
    "CostPlan",
    "Diagnosis",
    "Episode",
    "Estimate",
    "Margins",
    "Moment",
    "Monitor",
    "Overseen",
    "Policy",
    "RemoteOverseer",
    "SafemarginError",
    "Settings",
    "Study",
    "Tuples",
    "examine",
    "fit_margins",
    "load_policy",
    "oversee",
    "plan_study",
    "register_proxy",
    "register_state",
    "simulate_oversight",
    "true_criticality",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'safemargin' has no attribute {name!r}")
    return getattr(importlib.import_module(f"safemargin.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
