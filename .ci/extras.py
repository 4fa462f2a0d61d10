"""Check that every extra resolves alone, to wheels, on every Python that is supported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Resolve all of them; return how many do not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    failed = 0
    for extra in project["optional-dependencies"]:
        for python in PYTHONS:
            wanted = ["--extra", extra, "--python-version", python, "--only-binary", ":all:"]
            command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
            found = subprocess.run(
                [*command, "pyproject.toml", *wanted], cwd=ROOT, capture_output=True, text=True
            )
            failed += found.returncode != 0
            packages = sum("==" in line for line in found.stdout.splitlines())
            said = f"{packages} packages" if found.returncode == 0 else f"FAILS\n{found.stderr}"
            print(f"{extra} on Python {python}: {said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
