"""Importing a JAX library, or saying in one sentence what is missing or does not fit."""

from __future__ import annotations

import importlib
import importlib.metadata
import operator
import re
from collections.abc import Iterator
from typing import Any

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput, MissingExtra, describe_error

_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def library(name: str, module: str, environment: str) -> Any:
    """Return a module of the library that an environment needs; `name` is also our extra."""
    purpose = f"environment {environment!r}"
    load_jax(purpose)
    version = installed(name)
    if version is None:
        raise MissingExtra(purpose, extra=name)
    for wanted, found in clashes(name):
        raise InvalidInput(
            f"{purpose}: {name} {version} wants {wanted}, and {found} is installed: "
            f"pip install '{name}=={version}' '{wanted}'"
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{purpose}: {name} {version} needs the module {error.name!r}, which is not installed: "
            f"pip install 'safemargin[{name}]'"
        ) from error
    except Exception as error:  # a library made for others fails in any way
        raise InvalidInput(
            f"{purpose}: {name} {version} cannot be imported: {describe_error(error)}"
        ) from error


def installed(name: str) -> str | None:
    """Return the version of a library, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def clashes(name: str) -> Iterator[tuple[str, str]]:
    """Yield what a library asks for and does not find: ('gymnasium<1.4', '1.4.0')."""
    for line in importlib.metadata.requires(name) or ():
        requirement, _, condition = line.partition(";")
        parts = re.fullmatch(r"([\w.-]+)\s*\(?([<>=!][^()]*)\)?", requirement.strip())
        if condition or parts is None:  # of an extra, of other systems, or without versions
            continue
        found = installed(parts[1])
        if found is not None and not all(_holds(found, each) for each in parts[2].split(",")):
            yield requirement.strip(), found


def _holds(version: str, condition: str) -> bool:
    """Whether a version fulfils '<1.4'; what cannot be read counts as fulfilled."""
    parts = re.fullmatch(r"\s*([<>=!]=?)\s*([\d.]+)\s*", condition)
    if parts is None or parts[1] not in _COMPARED:
        return True
    limit = [int(number) for number in parts[2].strip(".").split(".")]
    own = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    own, limit = (each + [0] * (6 - len(each)) for each in (own, limit))
    return bool(_COMPARED[parts[1]](own, limit))
