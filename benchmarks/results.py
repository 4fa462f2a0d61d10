"""The list of measured ratios, benchmarks/results.json: one entry for each name."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

PATH = Path(__file__).with_name("results.json")


def machine() -> str:
    """The machine in a few words."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def record(name: str, value: float, goal: float | None, command: str, *, note: str = "") -> None:
    """Print one result and put it into the list in place of an earlier one."""
    entry = {
        "name": name,
        "value": round(value, 4),
        "goal": goal,
        "machine": machine(),
        "command": command,
        **({"note": note} if note else {}),
    }
    entries = json.loads(PATH.read_text()) if PATH.exists() else []
    known = {each["name"]: each for each in entries}
    known[name] = entry
    PATH.write_text(json.dumps(list(known.values()), indent=2) + "\n")
    wanted = "" if goal is None else f"   goal {goal:g}"
    print(f"{name:32} {value:10.3f}{wanted}   {note}", flush=True)
