"""How many mistakes can a reinforcement-learning agent afford right now?

The public names are loaded when first used, so that looking up a margin needs numpy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names
from safemargin.core.version import __version__ as __version__

if TYPE_CHECKING:
    from safemargin.core.records import Episode, Estimate, Moment, Tuples
    from safemargin.core.settings import Settings
    from safemargin.criticality.estimation import true_criticality
    from safemargin.environments.doctor import Diagnosis, examine
    from safemargin.environments.objects import register_state
    from safemargin.errors import SafemarginError
    from safemargin.margins.fitting import fit_margins
    from safemargin.margins.lookup import Margins
    from safemargin.monitor.audit import AuditLog
    from safemargin.monitor.monitor import Monitor
    from safemargin.monitor.overseen import Overseen, oversee
    from safemargin.monitor.remote import RemoteOverseer
    from safemargin.monitor.simulation import simulate_oversight
    from safemargin.policies.base import Policy
    from safemargin.policies.loading import load_policy
    from safemargin.policies.proxies import register_proxy
    from safemargin.study.planning import CostPlan, plan_study
    from safemargin.study.study import Study

_HOMES = {
    "AuditLog": "monitor.audit",
    "CostPlan": "study.planning",
    "Diagnosis": "environments.doctor",
    "Episode": "core.records",
    "Estimate": "core.records",
    "Margins": "margins.lookup",
    "Moment": "core.records",
    "Monitor": "monitor.monitor",
    "Overseen": "monitor.overseen",
    "Policy": "policies.base",
    "RemoteOverseer": "monitor.remote",
    "SafemarginError": "errors",
    "Settings": "core.settings",
    "Study": "study.study",
    "Tuples": "core.records",
    "examine": "environments.doctor",
    "fit_margins": "margins.fitting",
    "load_policy": "policies.loading",
    "oversee": "monitor.overseen",
    "plan_study": "study.planning",
    "register_proxy": "policies.proxies",
    "register_state": "environments.objects",
    "simulate_oversight": "monitor.simulation",
    "true_criticality": "criticality.estimation",
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
