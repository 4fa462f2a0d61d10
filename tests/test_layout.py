"""The floor plan: how much may lie at the top level, and how long a module or a function may be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from helpers.paths import ROOT

SOURCE = ROOT / "src" / "safemargin"
PACKAGES = (
    "core",
    "policies",
    "environments",
    "criticality",
    "engines",
    "margins",
    "validation",
    "study",
    "monitor",
    "replay",
    "web",
    "cli",
)
LONGEST_MODULE = 400
LONGEST_FUNCTION = 80


def modules() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 100
    return found


def test_the_top_level_holds_the_packages_and_little_else() -> None:
    entries = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert entries == {*PACKAGES, "errors.py", "__init__.py", "__main__.py", "py.typed"}


def test_every_package_says_what_it_is_for() -> None:
    for package in PACKAGES:
        tree = ast.parse((SOURCE / package / "__init__.py").read_text())
        assert ast.get_docstring(tree), package


def test_every_package_names_its_modules() -> None:
    """From these docstrings alone, a newcomer must find where something belongs."""
    packages = [path.parent for path in modules() if path.name == "__init__.py"]
    assert len(packages) > len(PACKAGES)
    for package in packages:
        if package == SOURCE:
            continue
        said = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        inside = {path.stem for path in package.iterdir() if path.suffix == ".py"} - {"__init__"}
        inside |= {path.parent.name for path in package.glob("*/__init__.py")}
        missing = {name for name in inside if not re.search(rf"\b{name}\b", said)}
        assert {name for name in missing if not name.startswith("show_")} == set(), package


SQL_MODULES = {
    "core/read_only.py",  # opens any database for reading
    *("study/reading.py", "study/schema.py", "study/store.py"),
    "monitor/audit.py",
}


def test_sql_stands_in_the_store_and_in_the_audit_log_only() -> None:
    """Everyone else asks them for records, and need not know how rows are kept."""
    found = set()
    for path in modules():
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        if names & {"execute", "executemany", "executescript"}:
            found.add(path.relative_to(SOURCE).as_posix())
    assert found == SQL_MODULES


def test_tests_mirror_the_packages() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert set(PACKAGES) <= folders


def test_no_module_is_too_long() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in modules()
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_no_function_is_too_long() -> None:
    lengths = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(SOURCE)}:{node.name}"
                lengths[name] = (node.end_lineno or node.lineno) - node.lineno + 1
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_no_test_imports_another_test() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 50
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.rpartition(".")[2].startswith("test_"), path
