"""What the site says about the code, taken from the code when the site is built."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).parents[1]
HOMES = (
    "safemargin",
    *(f"safemargin.{name}" for name in ("study", "criticality", "margins", "validation")),
    *(f"safemargin.{name}" for name in ("monitor", "policies", "environments")),
    *(f"safemargin.environments.{name}" for name in ("doctor", "functional")),
    *("safemargin.engines", "safemargin.errors"),
)
"""Packages with public names, in the order of the pages."""
SHOWN_AS = {
    "reproduction/README.md": "reproduction.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
"""Files of the repository, and the pages of the site that show them."""


def write_all(folder: Path) -> None:
    """Write the generated pages."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for home in HOMES:
        (folder / f"{file_of(home)}.md").write_text(python_page(home), "utf-8")
    (folder / "commands.md").write_text(commands_page(), "utf-8")
    (folder / "margins-entries.txt").write_text(margins_entries(), "utf-8")
    (folder / "study-schema.txt").write_text(study_schema(), "utf-8")
    (folder / "messages-fields.txt").write_text(messages_fields(), "utf-8")


# -- Python ------------------------------------------------------------------------------------


def file_of(home: str) -> str:
    """Return the name of a package's page."""
    return home.removeprefix("safemargin.").replace(".", "-")


def public_names(home: str) -> list[str]:
    """Return the public names of a package; of the module of errors, all."""
    module = importlib.import_module(home)
    if home != "safemargin.errors":
        return list(module.__all__)
    own = (name for name, value in vars(module).items() if inspect.isclass(value))
    return [name for name in own if getattr(module, name).__module__ == home]


def python_page(home: str) -> str:
    """Return the reference of a package's public names."""
    package = importlib.import_module(home)
    first = (package.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
    top = public_names("safemargin") if home != "safemargin" else []
    parts = [f"# {home}", first]
    for name in public_names(home):
        if name in top:
            parts += [f"## {name}", f"The same as {{py:obj}}`safemargin.{name}`."]
            continue
        kind = "class" if inspect.isclass(getattr(package, name)) else "function"
        if kind == "class" and issubclass(getattr(package, name), BaseException):
            kind = "exception"
        elif kind == "function" and not callable(getattr(package, name)):
            kind = "data"
        parts += [f"## {name}", f"```{{eval-rst}}\n.. auto{kind}:: {home}.{name}\n```"]
    return "\n\n".join(parts) + "\n"


# -- commands ----------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the help of every command, with its examples and options."""
    from safemargin.cli.app import app

    help_text = app.generate_docs(output_format="markdown", heading_level=1)
    sections = re.split(r"(?m)^(?=## safemargin )", help_text)[1:]
    sections.sort()
    start = (
        "# Commands\n\nEvery command takes `--json` (always one object) and `--help`. The exit "
        "status is 0 for success, 1 for a finding, such as an environment that cannot be "
        "measured, and 2 for bad usage or input.\n\n"
    )
    body = "".join(sections)
    body = re.sub(r"(?m)^```console$", "```shell", body)
    body = re.sub(r"(?m)^\*\*(Arguments|Options|Parameters)\*\*:", r"### \1", body)
    return start + body


# -- files and messages ------------------------------------------------------------------------


def margins_entries() -> str:
    """Return the entries of margins.json, and what the file says about itself."""
    from safemargin.margins import file

    names = {"dict": "object", "list": "list", "str": "text", "int": "whole number"}
    names |= {"float": "number", "bool": "true or false"}
    rows = [f"| `format` | text, always `{file.FORMAT}` |"]
    rows += [f"| `{name}` | {names[kind.__name__]} |" for name, kind in file.TYPES.items()]
    rows += ["| `natural_proxies` | object or null (from version 3 on) |"]
    rows += ["| `probe` | object or null (from version 4 on) |"]
    rows += ["| `test_vectors` | list (from version 4 on) |"]
    rows += ["| `measured` | object; left out for random actions and discounted reward |"]
    rows += ["| `readme` | text, for people |"]
    read = ", ".join(map(str, file.VERSIONS))
    return (
        f"Version {file.VERSION} is written; versions {read} are read.\n\n"
        "| entry | kind |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        f"The entry `readme` says:\n\n> {file.README}\n\n"
        f"Where `estimand` is a percentile or `sd`, it goes on:\n\n> {file.README_STATISTIC}\n\n"
        f"and where there is `measured`:\n\n> {file.README_MEASURED}\n"
    )


def study_schema() -> str:
    """Return the tables of a study's database."""
    from safemargin.study import schema

    entries = [f"| `{name}` | {_form(form)} | always |" for name, form in schema.ENTRIES.items()]
    entries += [
        f"| `{name}` | {_form(form)} | sometimes |"
        for name, form in schema.OPTIONAL_ENTRIES.items()
    ]
    return (
        f"The format is {schema.FORMAT}, stored as the entry `format` of `meta`.\n\n"
        f"```sql\n{schema.SCHEMA.strip()}\n```\n\n"
        "The table `meta` holds these entries as JSON:\n\n"
        "| entry | form | there |\n|---|---|---|\n" + "\n".join(entries) + "\n"
    )


def _form(form: Any) -> str:
    if isinstance(form, dict):
        return "object: " + ", ".join(f"`{name}`" for name in form)
    if isinstance(form, list):
        return "list"
    return {"str": "text", "dict": "object"}.get(getattr(form, "__name__", ""), "text or null")


MESSAGES = {
    "Hello": "An agent's first message, `hello`",
    "Report": "An agent's decision, `decision`",
    "Greeting": "A page's first message",
    "Renaming": "A person's new name",
    "Steering": "Take over, hand back, dismiss",
    "Snooze": "Not now",
    "HandOver": "Give to somebody else",
    "Act": "A person's action",
}


def messages_fields() -> str:
    """Return the fields of the messages that the server accepts."""
    from safemargin.web.fleet import messages

    said = dict(_said_of_fields(Path(messages.__file__)))
    parts = []
    for kind, title in MESSAGES.items():
        model = getattr(messages, kind)
        about = (model.__doc__ or "").strip()
        rows = []
        for name, hint in get_type_hints(model, include_extras=True).items():
            default = getattr(model.__dataclass_fields__[name], "default", None)
            needed = type(default).__name__ == "_MISSING_TYPE"
            text = said.get((kind, name), "")
            rows.append(
                f"| `{name}` | {_description(hint)} | "
                f"{'required' if needed else _json(default)} | {text} |"
            )
        table = "| field | must be | if left out | |\n|---|---|---|---|\n" + "\n".join(rows)
        parts.append(f"## {title}\n\n{about}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _description(hint: Any) -> str:
    """Return what a field must be, in the words of the server's own errors."""
    from pydantic.fields import FieldInfo

    plain = {bool: "true or false", str: "a text"}
    return FieldInfo.from_annotation(hint).description or plain.get(
        getattr(hint, "__origin__", None), "any value"
    )


def _json(value: Any) -> str:
    return {"": "empty", "()": "none", "None": "null"}.get(str(value), f"`{value}`".lower())


def _said_of_fields(source: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (class, field) and the text below the field."""
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for field, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(after.value, ast.Constant)
                    yield (node.name, field.target.id), " ".join(str(after.value.value).split())
