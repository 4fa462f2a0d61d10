"""Finding the policy that a user names: a file, an object, or text that points to one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safemargin.core.importing import locate, takes_no_arguments
from safemargin.errors import InvalidInput, did_you_mean, errors_as
from safemargin.policies.base import Policy, ScoreKind, checked_kind

NORMALIZED = "normalized"
"""The scheme of 'normalized:STATISTICS:MODEL.zip', which is how a study remembers --normalize."""

NO_STATISTICS = "none"
"""Given instead of a file of statistics: the policy was not trained under VecNormalize."""

FORMS = (
    "an .onnx file, a Stable-Baselines3 .zip, 'file.py:attribute', 'package.module:attribute', "
    "'zoo:NAME' or 'LIBRARY:FILE' (rllib, sbx, cleanrl, tianshou, rl-zoo)"
)


def load_policy(
    source: str | Path | Policy | Callable[[Any], Any] | Any,
    *,
    kind: ScoreKind | None = None,
    fixed_batch: int | None = 1,
    identity: str | None = None,
    normalize: Any = None,
) -> Policy:
    """Return the policy that a file, a text or an object stands for.

    `kind` says what the scores mean where the source does not. Always exactly `fixed_batch`
    observations are evaluated at once, so that scores do not depend on the batch; None takes every
    batch as it comes. `identity` replaces the hash of the weights.
    `normalize` is for Stable-Baselines3 models trained under VecNormalize: the file with its
    statistics (which is unpickled) or the VecNormalize itself; False for one trained without.
    """
    if kind is not None:
        checked_kind(kind, f"kind {kind!r} is unknown")
    options: dict[str, Any] = {"kind": kind, "fixed_batch": fixed_batch, "identity": identity}
    if normalize is not None:
        options["normalize"] = normalize
    if isinstance(source, str | Path):
        return _from_text(str(source), options)
    return _from_object(source, None, options)


def normalized(policy: Any, statistics: Any) -> Any:
    """Return one text that names a policy file and the file with its VecNormalize statistics.

    A policy or statistics that are not named by text leave the policy as it is.
    """
    if statistics is False:
        statistics = NO_STATISTICS
    if isinstance(policy, str | Path) and isinstance(statistics, str | Path):
        return f"{NORMALIZED}:{statistics}:{policy}"
    return policy


LOADERS: Mapping[str, str] = {
    "team": "safemargin.policies.team:load_member",
    "rl-zoo": "safemargin.policies.rl_zoo:load_rl_zoo",
    "rllib": "safemargin.policies.libraries.rllib:load_rllib",
    "cleanrl": "safemargin.policies.libraries.cleanrl:load_cleanrl",
    "sbx": "safemargin.policies.libraries.sbx:load_sbx",
    "tianshou": "safemargin.policies.libraries.tianshou:load_tianshou",
}
"""'SCHEME:REST' names the policy that this function makes of REST and the options."""


_LIBRARIES = "safemargin.policies.libraries"
_OBJECTS: Mapping[str, tuple[str, str, str]] = {
    "tianshou": (f"{_LIBRARIES}.tianshou", "is_tianshou", "TianshouPolicy"),
    "tensordict": (f"{_LIBRARIES}.torchrl", "is_torchrl", "TorchrlPolicy"),
    "skrl": (f"{_LIBRARIES}.skrl", "is_skrl", "SkrlPolicy"),
}
"""A library that is imported already → whose objects they are, and the policy made of one."""


def _from_text(text: str, options: dict[str, Any]) -> Policy:
    scheme, _, rest = text.partition(":")
    if scheme in LOADERS:
        return locate(LOADERS[scheme], what="policy")(rest, **options)  # type: ignore[no-any-return]
    if scheme == NORMALIZED:
        statistics, _, rest = rest.partition(":")
        return _from_text(rest, {**options, "normalize": statistics})
    suffix = Path(text).suffix.lower()
    if scheme == "sb3" or suffix == ".zip":
        from safemargin.policies.sb3 import load_sb3

        algorithm, _, file = rest.partition(":") if scheme == "sb3" else (None, "", text)
        if not file:
            raise InvalidInput(f"policy {text!r}: write it as 'sb3:ALGORITHM:model.zip'")
        return load_sb3(_existing(file), algorithm=algorithm, **options)
    if scheme == "zoo" or suffix == ".onnx":
        from safemargin.policies.onnx import OnnxPolicy
        from safemargin.policies.zoo import zoo_path

        _refuse_statistics(text, options)
        if scheme == "zoo":
            return OnnxPolicy(zoo_path(rest), description=text, **options)
        return OnnxPolicy(_existing(text), **options)
    if suffix in (".pt", ".pth", ".ckpt", ".safetensors"):
        raise InvalidInput(
            f"policy {text}: a {suffix} file holds weights without the network they belong to; "
            "write a function without arguments that builds the network, loads the weights and "
            "returns it, and name it as 'file.py:function'"
        )
    if ":" in text or suffix == ".py":
        return _from_object(locate(text, what="policy"), text, options)
    there = "is not a kind of file that can be read" if Path(text).exists() else "does not exist"
    raise InvalidInput(f"policy {text!r} {there}; name {FORMS}")


def _from_object(source: Any, description: str | None, options: dict[str, Any]) -> Policy:
    if takes_no_arguments(source):
        name = description or getattr(source, "__qualname__", repr(source))
        with errors_as(InvalidInput, f"policy {name}: making it failed:"):
            source = source()
    if isinstance(source, Policy):
        _refuse_statistics(source.description, options)
        kind = options["kind"]
        if kind is not None and kind != source.kind:
            raise InvalidInput(
                f"policy {source.description}: its scores are of kind {source.kind!r}, not {kind!r}"
            )
        return source
    if isinstance(source, str | Path):
        return _from_text(str(source), options)  # a factory may return the name of a file
    # An object of a library can exist only if the library is already imported.
    if "stable_baselines3" in sys.modules:
        from safemargin.policies.sb3 import Sb3Policy, is_sb3_model

        if is_sb3_model(source):
            return Sb3Policy(source, description=description, **options)
    of_jax = "jax" in sys.modules or hasattr(source, "params")  # or a function without imports
    if of_jax and (made := _from_jax(source, description, options)) is not None:
        return made
    for library, (module, of_library, adapter) in _OBJECTS.items():
        if library in sys.modules and locate(f"{module}:{of_library}", what="policy")(source):
            _refuse_statistics(description or repr(source), options)
            make = locate(f"{module}:{adapter}", what="policy")
            return make(source, description=description, **options)  # type: ignore[no-any-return]
    if not callable(source):  # a torch module is
        raise InvalidInput(
            f"policy {description or repr(source)}: expected a Policy, a torch module, a "
            f"Stable-Baselines3 model or a function of observations, got {type(source).__name__}"
        )
    _refuse_statistics(description or repr(source), options)
    options["kind"] = _required_kind(source, description, options["kind"])
    if "torch" in sys.modules:
        from safemargin.policies.torch import TorchPolicy, is_module

        if is_module(source):
            return TorchPolicy(source, description=description, **options)
    from safemargin.policies.function import FunctionPolicy

    return FunctionPolicy(source, description=description, **options)


def _from_jax(source: Any, description: str | None, options: dict[str, Any]) -> Policy | None:
    """Return the policy that something of JAX stands for; None if it is nothing of JAX."""
    from safemargin.policies import jax_loading

    name = description or str(getattr(source, "__qualname__", type(source).__qualname__))
    if jax_loading.wants_params(source):
        raise jax_loading.refuse_without_params(name)
    if not jax_loading.is_jax(source):
        return None
    _refuse_statistics(name, options)
    kind = _required_kind(jax_loading.kind_of(source), description, options["kind"])
    return jax_loading.jax_policy(
        source, kind=kind, description=description, identity=options["identity"]
    )


def _refuse_statistics(name: str, options: dict[str, Any]) -> None:
    if "normalize" in options:
        raise InvalidInput(
            f"policy {name}: VecNormalize statistics belong to Stable-Baselines3 models; put the "
            "normalisation of other policies into the environment or into the policy"
        )


def _required_kind(source: Any, description: str | None, kind: ScoreKind | None) -> ScoreKind:
    """Return what the scores of a function or a network mean, which only the user can know."""
    kind = kind or getattr(source, "kind", None)
    if kind is None:
        name = description or getattr(source, "__qualname__", type(source).__qualname__)
        raise InvalidInput(
            f"policy {name}: say what its scores mean with --scores q or --scores logits "
            "(kind= of load_policy, scores= of Study.create)"
        )
    name = description or type(source).__qualname__
    return checked_kind(kind, f"policy {name}: its kind {kind!r} is unknown")


def _existing(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        beside = [each.name for each in path.parent.glob(f"*{path.suffix}")]
        hint = did_you_mean(path.name, beside) if beside else f"name {FORMS}"
        raise InvalidInput(f"policy {text}: there is no such file; {hint}")
    return path
