"""Small studies for gates, made as a person makes them, and options under which they decide."""

from __future__ import annotations

from pathlib import Path

from helpers.paths import WORLDS
from safemargin.cli import main

ROAD = f"{WORLDS}:make_risky_road"
SMALL = ["--n", "1,2,4", "--trials", "12", "--natural", "30", "--spread", "12", "--workers", "1"]
DECIDED = [
    *("--matters", "return=1", "--matters", "affordable=1.5", "--matters", "critical=0.5"),
    *("--matters", "worst=2", "--matters", "margins=0.5", "--worst", "0.5", "--tolerance", "0.5"),
]
"""30 moments suffice to see differences as large as these."""


def collect_road(
    folder: Path, policy: str, *more: str, settings: list[str] = SMALL, environment: str = ROAD
) -> Path:
    """Collect a study of a policy of the worlds on the risky road."""
    named = ["collect", environment, f"{WORLDS}:{policy}", "-o", str(folder), "--scores", "logits"]
    assert main([*named, *settings, *more]) == 0
    return folder
