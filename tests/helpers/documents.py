"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from helpers.paths import ROOT

NOT_WRITTEN_BY_HAND = ("generated", "_build")
PAGES = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "reproduction/README.md"),
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if not set(path.relative_to(ROOT).parts) & set(NOT_WRITTEN_BY_HAND)
    ),
]


def module_of_the_site(name: str) -> ModuleType:
    """A module beside the pages, such as `blocks`, which Sphinx imports too."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
