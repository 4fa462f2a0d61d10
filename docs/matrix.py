"""Writes two tables into docs/policies.md: what the tests of adapters ran, and how fast they are.

`make test-adapters` calls it with the file in which each test noted what it found equal, and
`benchmarks/bench_adapters.py` what it measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "policies.md"

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


def main(records: Path) -> None:
    """Replace both tables on the page."""
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    page = PAGE.read_text(encoding="utf-8")
    matrix = table([row for row in rows if "library" in row])
    for name, text in (
        ("matrix", matrix),
        ("speeds", speeds([row for row in rows if "speed" in row])),
    ):
        before, begin, rest = page.partition(f"<!-- {name}: made by make test-adapters -->")
        _, end, after = rest.partition(f"<!-- end of the {name} -->")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
