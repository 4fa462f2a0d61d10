"""Paths of the repository that tests read from."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
WORLDS = TESTS / "helpers" / "worlds.py"
DATA = TESTS / "data"
"""Files that earlier versions of safemargin wrote."""
