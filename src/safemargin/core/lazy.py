"""Public names that are imported when first used, so that importing a package stays cheap."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`.

    The public names and their homes are the imports under `if TYPE_CHECKING` in its source, as
    `from HOME import NAME as NAME`: type checkers read the same table.
    """
    source = ast.parse(inspect.getsource(sys.modules[package]))
    block = next(part for part in source.body if isinstance(part, ast.If))
    homes = {
        alias.name: line.module
        for line in block.body
        if isinstance(line, ast.ImportFrom) and line.module
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
