"""What code may read besides its arguments, and in what two processes differ there."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

NAMED = 5
"""The most environment variables or modules that a message names."""
_OF_EVERY_PROCESS = {
    *("_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL"),
    *("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONPATH", "SDL_VIDEODRIVER", "SPT_NOENV"),
}
"""Variables that differ between processes anyway, or are set by replay/pictures.py or by Ray.

Ray also sets those in RAY_.
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of one process; variables and modules are hashed."""

    folder: str
    processor: str
    variables: Mapping[str, str]
    modules: Mapping[str, str]
    """The user's modules as they were loaded: their files may have changed since."""

    @classmethod
    def here(cls) -> Surroundings:
        """Return the surroundings of this process."""
        return cls(
            folder=_folder(),
            processor=_processor(),
            variables={
                name: _hash(value)
                for name, value in os.environ.items()
                if name not in _OF_EVERY_PROCESS and not name.startswith("RAY_")
            },
            modules={name: _hash(*_contents(module)) for name, module in _modules_of_the_user()},
        )

    def compared_with(self, theirs: Surroundings) -> str:
        """Say in which of these another process differs from this one, as part of a sentence."""
        found = []
        variables = _differing(self.variables, theirs.variables)
        read = [name for name in variables if any(name in text for text in _sources())]
        if variables:
            found.append(f"the environment variables {_listed(read or variables)} differ")
        if self.folder != theirs.folder:
            found.append(f"the working folder is {theirs.folder}, not {self.folder}")
        common = self.modules.keys() & theirs.modules.keys()
        modules = [name for name in _differing(self.modules, theirs.modules) if name in common]
        if modules:
            found.append(f"other versions of the modules {_listed(modules)} are loaded")
        if self.processor != theirs.processor:
            found.append(f"the processor is {theirs.processor}, not {self.processor}")
        if not found:
            return (
                "no environment variable, working folder or module accounts for it, so it may lie "
                "in other files, or in the order of a set (PYTHONHASHSEED)"
            )
        return "there " + ", ".join(found)


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _modules_of_the_user() -> Iterator[tuple[str, ModuleType]]:
    """Yield the loaded modules that are neither Python's, installed nor ours, with their names."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] in ("__main__", "safemargin"):
            continue
        if not any(Path(file).is_relative_to(folder) for folder in installed):
            yield name, module


def _sources() -> list[str]:
    """Return the text of the user's modules and script, as far as it can be read."""
    files = [module.__file__ for _, module in _modules_of_the_user()]
    files.append(getattr(sys.modules["__main__"], "__file__", None))
    return [
        Path(file).read_text(errors="replace")
        for file in files
        if file is not None and file.endswith(".py") and Path(file).is_file()
    ]


def _contents(module: ModuleType) -> Iterator[str]:
    """Yield the code and the plain values in a module and its classes."""
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        of_class = isinstance(value, type) and value.__module__ == module.__name__
        for member, item in vars(value).items() if of_class else [(name, value)]:
            item = getattr(item, "__func__", item)  # of a static or class method
            for text in _texts(getattr(item, "__code__", item)):
                yield f"{name}.{member} {text}"


def _texts(value: Any) -> Iterator[str]:
    """Yield what a code object does, with its constants, or a plain value."""
    if isinstance(value, CodeType):
        yield f"{value.co_code.hex()} {value.co_names}"
        for constant in value.co_consts:
            yield from _texts(constant)
    elif isinstance(value, str | bytes | int | float | None):
        yield repr(value)


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="replace")).hexdigest()


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that is gone"


def _processor() -> str:
    """Return the name of the processor's type, as precisely as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
