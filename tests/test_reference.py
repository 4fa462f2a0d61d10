"""The site's reference leaves nothing out: names, commands, files and messages."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from helpers.documents import module_of_the_site
from helpers.paths import ROOT

from safemargin.cli.app import app
from safemargin.errors import SafemarginError

generate = module_of_the_site("generate")
SOURCE = ROOT / "src" / "safemargin"
NOT_FOR_USERS = {"safemargin.cli", "safemargin.web.fleet", "safemargin.engines.jax"}
"""Packages whose names are for the package itself."""


def test_every_package_with_public_names_has_a_page_with_all_of_them() -> None:
    packages = {
        ".".join(path.parent.relative_to(SOURCE.parent).parts)
        for path in SOURCE.rglob("__init__.py")
        if "__all__" in path.read_text("utf-8")
    }
    assert packages - NOT_FOR_USERS == set(generate.HOMES) - {"safemargin.errors"}
    listed = (ROOT / "docs/reference/index.md").read_text("utf-8")
    for home in generate.HOMES:
        page = generate.python_page(home)
        assert f"../generated/{generate.file_of(home)}\n" in listed
        for name in importlib.import_module(home).__dict__.get("__all__", ()):
            assert f"## {name}\n" in page, f"{home}.{name}"


def test_every_error_has_an_entry() -> None:
    found = {
        name
        for name, value in vars(importlib.import_module("safemargin.errors")).items()
        if inspect.isclass(value) and issubclass(value, SafemarginError)
    }
    assert found <= set(generate.public_names("safemargin.errors"))


def test_every_command_has_its_examples_and_options() -> None:
    page = generate.commands_page()
    for command in app:
        if command.startswith("-"):
            continue
        section = page.partition(f"## safemargin {command}\n")[2].partition("\n## ")[0]
        assert f"safemargin {command}" in section.partition("```")[2], f"no example of {command}"
        options = re.findall(r"--[a-z][\w-]+", section)
        assert "--json" in options or command == "completion", command


def test_a_margins_file_holds_nothing_that_is_not_listed() -> None:
    files = [
        ROOT / "tests/data/cartpole-margins.json",
        *(SOURCE / "policies/zoo/margins").iterdir(),
    ]
    for file in files:
        for entry in json.loads(file.read_text("utf-8")):
            assert f"| `{entry}` |" in generate.margins_entries(), (file.name, entry)


def test_a_study_holds_nothing_that_is_not_listed(narrow_study: Path) -> None:
    schema = generate.study_schema()
    with sqlite3.connect(narrow_study / "study.db") as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
        entries = [row[0] for row in database.execute("SELECT name FROM meta")]
    assert all(table in schema for table in tables if not table.startswith("sqlite_"))
    assert [name for name in entries if f"`{name}`" not in schema] == []


@pytest.mark.parametrize(
    "files",
    [("monitor/remote.py",), ("web/fleet/state.py", "web/fleet/control.py", "web/fleet_app.py")],
)
def test_every_message_between_agents_and_the_server_is_listed(files: Any) -> None:
    page = (ROOT / "docs/reference/messages.md").read_text("utf-8") + generate.messages_fields()
    said = {
        kind
        for file in files
        for kind in re.findall(r'"kind": "(\w+)"', (SOURCE / file).read_text("utf-8"))
    }
    for kind in said - {"fleet", "seen"}:  # to our own pages
        assert f'"kind": "{kind}"' in page or f"`{kind}`" in page, kind


def test_every_class_of_messages_is_listed() -> None:
    from safemargin.web.fleet import messages

    classes = {
        name
        for name, value in vars(messages).items()
        if inspect.isclass(value) and value.__module__ == messages.__name__
    }
    assert classes == set(generate.MESSAGES)
