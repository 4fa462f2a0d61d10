"""How many mistakes can a reinforcement-learning agent afford right now?

The public names are loaded when first used, so that looking up a margin needs numpy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names
from safemargin.core.version import __version__ as __version__

if TYPE_CHECKING:
    from safemargin.core.records import Episode as Episode
    from safemargin.core.records import Estimate as Estimate
    from safemargin.core.records import Moment as Moment
    from safemargin.core.records import Tuples as Tuples
    from safemargin.core.settings import Settings as Settings
    from safemargin.criticality.one_moment import true_criticality as true_criticality
    from safemargin.environments.doctor import Diagnosis as Diagnosis
    from safemargin.environments.doctor import examine as examine
    from safemargin.environments.objects import register_state as register_state
    from safemargin.errors import SafemarginError as SafemarginError
    from safemargin.margins.fitting import fit_margins as fit_margins
    from safemargin.margins.lookup import Margins as Margins
    from safemargin.monitor.audit import AuditLog as AuditLog
    from safemargin.monitor.caller import Caller as Caller
    from safemargin.monitor.monitor import Monitor as Monitor
    from safemargin.monitor.overseen import Overseen as Overseen
    from safemargin.monitor.overseen import oversee as oversee
    from safemargin.monitor.remote import RemoteOverseer as RemoteOverseer
    from safemargin.monitor.simulation import simulate_oversight as simulate_oversight
    from safemargin.policies.base import Policy as Policy
    from safemargin.policies.loading import load_policy as load_policy
    from safemargin.policies.proxies import register_proxy as register_proxy
    from safemargin.study.gating import gate as gate
    from safemargin.study.planning import CostPlan as CostPlan
    from safemargin.study.planning import plan_study as plan_study
    from safemargin.study.study import Study as Study

__getattr__, __dir__, __all__ = lazy_names(__name__)
