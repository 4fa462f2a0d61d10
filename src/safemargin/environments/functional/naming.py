"""Environments named 'jax:LIBRARY:NAME' or 'jax:file.py:function'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safemargin.core.importing import locate
from safemargin.environments.functional.protocol import FunctionalEnvironment
from safemargin.environments.simulator import Env
from safemargin.environments.spec import EnvironmentSpec
from safemargin.errors import InvalidInput, did_you_mean, errors_as
from safemargin.policies.base import Policy

SCHEME = "jax"

_HERE = "safemargin.environments.functional"
ADAPTERS: Mapping[str, str] = {
    "brax": f"{_HERE}.adapters.brax:make",
    "craftax": f"{_HERE}.adapters.craftax:make",
    "gymnax": f"{_HERE}.adapters.gymnax:make",
    "jaxtari": f"{_HERE}.adapters.jaxtari:make",
    "pgx": f"{_HERE}.adapters.pgx:make",
    "safemargin": f"{_HERE}.rocket:make",
}
"""'LIBRARY:NAME' is the FunctionalEnvironment that this function makes of NAME and arguments."""


def make_functional(rest: str, **arguments: Any) -> Env:
    """Make the environment that 'jax:REST' names, as an ordinary Gymnasium one."""
    from safemargin.environments.functional.wrapped import FunctionalGym

    return FunctionalGym(functional_environment(rest, **arguments))


def functional_environment(rest: str, **arguments: Any) -> FunctionalEnvironment:
    """Make the environment that 'jax:REST' names."""
    library, _, name = rest.partition(":")
    text = f"{SCHEME}:{rest}"
    if library in ADAPTERS:
        if not name:
            raise InvalidInput(f"environment {text!r}: name one of the library, as '{text}:NAME'")
        found = locate(ADAPTERS[library], what="environment")(name, **arguments)
    else:
        source = rest.rpartition(":")[0]
        if not source.endswith(".py") and "." not in source:
            known = did_you_mean(library, list(ADAPTERS))
            raise InvalidInput(
                f"environment {text!r}: no library {library!r} is known; {known}; name your own "
                "as 'jax:file.py:function'"
            )
        make = locate(rest, what="environment")
        if not callable(make):
            raise InvalidInput(
                f"environment {text!r}: expected a function that makes it, "
                f"got {type(make).__name__}"
            )
        with errors_as(InvalidInput, f"environment {text!r} could not be made:"):
            found = make(**arguments)
    if not isinstance(found, FunctionalEnvironment):
        raise InvalidInput(
            f"environment {text!r}: expected a FunctionalEnvironment, got {type(found).__name__}"
        )
    found.name = found.name or type(found).__name__
    return found


def functional_of(spec: EnvironmentSpec) -> FunctionalEnvironment | None:
    """Return the functional environment that a specification names; None if it is another kind."""
    if spec.text is None or spec.scheme != SCHEME:
        return None
    return functional_environment(spec.text.partition(":")[2], **spec.arguments)


def suited_to(spec: EnvironmentSpec, policy: Policy) -> Policy:
    """Return a policy as a study in this environment asks it: in JAX where both can be in JAX.

    One runtime then scores the observations of every engine and of every replay, bit for bit.
    """
    if spec.scheme != SCHEME:
        return policy
    from safemargin.policies.jax_loading import as_jax

    try:
        return as_jax(policy) or policy
    except InvalidInput:  # an ONNX file with other operators: engine 'jax' says which
        return policy
