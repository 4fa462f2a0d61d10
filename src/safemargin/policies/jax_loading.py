"""Networks and functions of JAX users, and files, as policies in JAX.

Known are a function `(params, observations)` that carries its `params`, the pair of such a function
(or of a Flax module) and its parameters, Equinox modules and Flax NNX modules.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from typing import Any

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput
from safemargin.policies.base import Policy, ScoreKind
from safemargin.policies.identity import function_identity, weights_identity
from safemargin.policies.jax import JaxPolicy
from safemargin.policies.onnx import OnnxPolicy

_translations: weakref.WeakKeyDictionary[OnnxPolicy, JaxPolicy] = weakref.WeakKeyDictionary()


def as_jax(policy: Policy) -> JaxPolicy | None:
    """Return a policy as one in JAX, None if its kind cannot be one.

    Raises InvalidInput for an ONNX file with operators that have no counterpart here.
    """
    if isinstance(policy, OnnxPolicy):
        if policy not in _translations:
            from safemargin.policies.onnx_jax import translated

            _translations[policy] = translated(policy)
        return _translations[policy]
    return policy if isinstance(policy, JaxPolicy) else None


def is_jax(source: Any) -> bool:
    """Whether this is something that `jax_policy` takes."""
    if isinstance(source, tuple):
        return len(source) == 2 and (callable(source[0]) or hasattr(source[0], "apply"))
    return (hasattr(source, "params") and _is_function(source)) or _module_kind(source) is not None


def wants_params(source: Any) -> bool:
    """Whether this is a function `(params, observations)` that does not say what its params are."""
    if not _is_function(source) or hasattr(source, "params"):
        return False
    names = [
        name
        for name, each in inspect.signature(source).parameters.items()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    return len(names) >= 2 and names[0] in ("params", "parameters", "variables", "weights")


def jax_policy(
    source: Any, *, kind: ScoreKind, description: str | None, identity: str | None
) -> JaxPolicy:
    """Return the policy that a function, a pair or a module stands for."""
    function, params, structure = _parts(source)
    owner = source[0] if isinstance(source, tuple) else source
    if identity is None:
        load = load_jax("a policy in JAX")
        leaves = load.tree_util.tree_flatten_with_path(params)[0]
        weights = {load.tree_util.keystr(path): leaf for path, leaf in leaves}
        identity = weights_identity(structure, weights)
    return JaxPolicy(
        function,
        params,
        kind=kind,
        initial=getattr(owner, "initial", None),
        hidden=getattr(owner, "hidden", None) if _is_function(owner) else None,
        identity=identity,
        description=description or getattr(owner, "__qualname__", type(owner).__qualname__),
    )


def kind_of(source: Any) -> Any:
    """Return what says what the scores mean."""
    return source[0] if isinstance(source, tuple) else source


def _parts(source: Any) -> tuple[Any, Any, list[str]]:
    """Return a pure function, its parameters, and lines that say what decides the scores too."""
    if isinstance(source, tuple):
        network, params = source
        if _is_function(network):
            return network, params, [function_identity(network)]
        apply = getattr(network, "apply", network)
        return apply, params, [repr(network), _code(type(network))]
    if _is_function(source):
        return source, source.params, [function_identity(source)]
    load = load_jax("a policy in JAX")
    if _module_kind(source) == "equinox":
        equinox = sys.modules["equinox"]
        params, rest = equinox.partition(source, equinox.is_array)

        def of_batch(params: Any, observations: Any) -> Any:
            return load.vmap(equinox.combine(params, rest))(observations)

        return of_batch, params, [repr(rest), _code(type(source))]
    nnx = sys.modules["flax.nnx"]
    definition, state = nnx.split(source)

    def merged(params: Any, observations: Any) -> Any:
        return nnx.merge(definition, params)(observations)

    return merged, state, [repr(definition), _code(type(source))]


def _module_kind(source: Any) -> str | None:
    """Name the library whose module this is; an object can exist only if it is imported."""
    equinox, nnx = sys.modules.get("equinox"), sys.modules.get("flax.nnx")
    if equinox is not None and isinstance(source, equinox.Module):
        return "equinox"
    return "nnx" if nnx is not None and isinstance(source, nnx.Module) else None


def _is_function(source: Any) -> bool:
    return inspect.isfunction(source) or hasattr(source, "__wrapped__")  # which jax.jit leaves


def _code(kind: type) -> str:
    """Return the source of a network's class, as far as it can be seen."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return kind.__qualname__


def refuse_without_params(name: str) -> InvalidInput:
    """Return the error for a function that does not say what its parameters are."""
    return InvalidInput(
        f"policy {name}: it takes (params, observations), but nothing says what the params are: "
        "set them as its attribute, function.params = …, or name a function without arguments that "
        "returns (function, params)"
    )
