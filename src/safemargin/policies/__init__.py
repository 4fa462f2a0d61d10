"""Trained agents behind one protocol: observations in, action scores out.

`base` holds the protocol and `loading` finds the adapter for what a user names: `onnx` (with
`onnx_graph`), `torch`, `sb3` (with `normalisation` and `critics`; `rl_zoo` reads training folders),
`jax` (with `jax_loading`) or `function`, one module per library; `libraries` holds more of them,
and `team` the policies of all agents of a game. `onnx_jax` translates ONNX files into JAX, with the
operators of `onnx_operators` and what `onnx_model` and `onnx_messages` read from the file.
`batching` and `checks` keep scores repeatable and well-formed, `identity` hashes an agent,
`observations` batches what agents see, `actions` turns scores (or random numbers) into actions, in
one or several parts (`action_spaces`), `proxies` turns scores into proxy values, `features`
prepares the input of learned proxies, `value_signals` are signs that a policy may be wrong, and
`zoo` holds the bundled agents.

To add a proxy, write a function in `proxies` and list it in `_BUILT_IN` there; if it needs the
policy's critics, write it in `critics`. To add a library, write an adapter and name it in
`loading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.policies.base import Memory as Memory
    from safemargin.policies.base import Observations as Observations
    from safemargin.policies.base import Policy as Policy
    from safemargin.policies.base import ScoreKind as ScoreKind
    from safemargin.policies.loading import load_policy as load_policy
    from safemargin.policies.proxies import Proxy as Proxy
    from safemargin.policies.proxies import register_proxy as register_proxy

__getattr__, __dir__, __all__ = lazy_names(__name__)
