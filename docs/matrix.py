"""Writes the matrix of libraries and algorithms into docs/policies.md, from what tests really ran.

`make test-adapters` calls it with the file in which each test noted what it found equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "policies.md"
BEGIN, END = "<!-- matrix: made by make test-adapters -->", "<!-- end of the matrix -->"

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


def main(records: Path) -> None:
    """Replace the matrix on the page."""
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
