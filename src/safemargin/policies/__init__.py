"""Trained agents behind one protocol: adapters, batching, actions, proxies and the bundled zoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.policies.base import Memory, Observations, Policy, ScoreKind
    from safemargin.policies.loading import load_policy
    from safemargin.policies.proxies import Proxy, register_proxy

__all__ = [
    "Memory",
    "Observations",
    "Policy",
    "Proxy",
    "ScoreKind",
    "load_policy",
    "register_proxy",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Memory": "base",
        "Observations": "base",
        "Policy": "base",
        "Proxy": "proxies",
        "ScoreKind": "base",
        "load_policy": "loading",
        "register_proxy": "proxies",
    },
)
