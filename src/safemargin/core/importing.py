"""Python objects named by text: 'package.module:attribute' or 'path/to/file.py:attribute'."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from safemargin.errors import InvalidInput, describe_error, did_you_mean, errors_as

FROM_A_FILE = "safemargin_file_"
"""How the names of modules begin that were loaded from a file by its path."""
CACHED: Any = type(functools.cache(lambda: None))


def locate(text: str, *, what: str) -> Any:
    """Return the object that a text names; error messages start with `what`."""
    source, _, attribute = text.rpartition(":")
    if not source or not attribute:
        raise InvalidInput(
            f"{what} {text!r}: name an object in it, as 'file.py:attribute' or "
            "'package.module:attribute'"
        )
    load = _module_from_file if source.endswith(".py") else _module_from_name
    value: Any = load(source, text, what)
    for name in attribute.split("."):
        if not hasattr(value, name):
            public = [each for each in dir(value) if not each.startswith("_")]
            raise InvalidInput(f"{what} {text!r}: no {name!r} there; {did_you_mean(name, public)}")
        value = getattr(value, name)
    return value


def takes_no_arguments(value: Any) -> bool:
    """Whether a function or class is to be called, without arguments, to get the object itself."""
    if not (inspect.isfunction(value) or inspect.isclass(value) or inspect.isbuiltin(value)):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    if inspect.isclass(value):
        return all(
            parameter.default is not parameter.empty
            or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in parameters
        )
    return not list(parameters)


def _module_from_name(name: str, text: str, what: str) -> ModuleType:
    with errors_as(InvalidInput, f"{what} {text!r}: importing it failed:"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # it is there, but needs another module that is not
            raise InvalidInput(
                f"{what} {text!r}: no module named {error.name!r} can be imported; "
                "for a file, write 'path/to/file.py:attribute'"
            ) from error


def _module_from_file(name: str, text: str, what: str) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise InvalidInput(f"{what} {text!r}: there is no file {Path(name)}")
    # The name depends on the whole path, so that two files called agent.py do not collide.
    tag = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"{FROM_A_FILE}{path.stem}_{tag}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{what} {text!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As when Python runs the file: it may import its neighbours.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidInput(
            f"{what} {text!r}: running the file failed: {describe_error(error)}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    # A worker process cannot import the file by this name, so its objects are pickled by value.
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    copyreg.pickle(CACHED, _reduce_cached)
    return module


def _reduce_cached(function: Any) -> Any:
    """Pickle a function under `functools.cache` like the function itself: by value or by name."""
    if (function.__module__ or "").startswith(FROM_A_FILE):
        return _cached, (function.__wrapped__, function.cache_parameters())
    return function.__qualname__


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
