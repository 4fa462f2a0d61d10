"""Writes tables of what tests really ran into docs/policies.md and docs/environments.md.

`make test-adapters` calls it with the file in which each test of an adapter noted what it found
equal, and `benchmarks/bench_adapters.py` how fast it was; `make test-worlds` with that of worlds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DOCS = Path(__file__).parent

NAMES = {
    "ray": "RLlib",
    "sbx-rl": "SBX",
    "torchrl": "TorchRL",
    "tianshou": "Tianshou",
    "flax": "CleanRL (Flax)",
    "torch": "CleanRL (PyTorch)",
    "rl_zoo3": "rl-zoo3",
}
"""Package → the library as people call it."""


def table(rows: list[dict[str, str]]) -> str:
    """Return the matrix as a Markdown table, one row for each algorithm and space."""
    lines = [
        "| library | algorithm | actions | scores | 256 observations, one at a time |",
        "|---|---|---|---|---|",
    ]
    found = {
        (NAMES.get(row["library"], row["library"]), row["algorithm"], row["actions"]): row
        for row in rows
    }
    for (library, algorithm, actions), row in sorted(found.items()):
        name = algorithm.removeprefix("CleanRL ").removesuffix("-box")
        version = f"{library} {row['version']}" if not library.startswith("CleanRL") else library
        lines.append(f"| {version} | {name} | `{actions}` | `{row['scores']}` | {row['equal']} |")
    return "\n".join(lines)


def speeds(rows: list[dict[str, float | str]]) -> str:
    """Return the time of one observation beside that of ONNX in the same run."""
    lines = [
        "| library | one observation, µs | ONNX beside it, µs | times ONNX |",
        "|---|---|---|---|",
    ]
    latest = {row["speed"]: row for row in rows}
    for library, row in sorted(latest.items(), key=lambda item: float(item[1]["microseconds"])):
        ours, beside = float(row["microseconds"]), float(row["onnx_microseconds"])
        lines.append(f"| {library} | {ours:.0f} | {beside:.0f} | {ours / beside:.0f} |")
    return "\n".join(lines)


def worlds(rows: list[dict[str, str]]) -> str:
    """Return which worlds were restored exactly, how, and how often."""
    lines = ["| library | world | way | runs from a restored moment, equal bit for bit |"]
    lines += ["|---|---|---|---|"]
    latest = {row["world"]: row for row in rows}
    for world, row in sorted(latest.items(), key=lambda item: (item[1]["library"], item[0])):
        name = f"{row['library']} {row['version']}"
        lines.append(f"| {name} | `{world}` | {row['way']} | {row['continuations']} |")
    return "\n".join(lines)


def main(records: Path) -> None:
    """Replace the tables that the records are about."""
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    tables = (
        ("policies.md", "matrix", "adapters", table, "algorithm"),
        ("policies.md", "speeds", "adapters", speeds, "speed"),
        ("environments.md", "matrix", "worlds", worlds, "world"),
    )
    for file, name, target, draw, about in tables:
        found = [row for row in rows if about in row]
        if not found:
            continue
        page = (DOCS / file).read_text(encoding="utf-8")
        before, begin, rest = page.partition(f"<!-- {name}: made by make test-{target} -->")
        _, end, after = rest.partition(f"<!-- end of the {name} -->")
        text = f"{before}{begin}\n\n{draw(found)}\n\n{end}{after}"
        (DOCS / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
