"""Trained agents behind one protocol: observations in, action scores out.

`base` holds the protocol and `loading` finds the adapter for what a user names: `onnx`, `torch`,
`sb3` (with `normalisation`) or `function`, one module per library. `batching` and `checks` keep
scores repeatable and well-formed, `identity` hashes an agent, `actions` turns scores into actions,
`proxies` turns them into proxy values, and `zoo` holds the bundled agents. To add a proxy, write a
function in `proxies` and list it in `PROXIES` there; to add a library, write an adapter and name it
in `loading`.
"""

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
