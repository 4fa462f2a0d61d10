"""Commands as a person types them."""

from __future__ import annotations

import signal
from pathlib import Path

from helpers.paths import WORLDS

ENVIRONMENT = f"{WORLDS}:make_branching"


SLOW_ENVIRONMENT = f"{WORLDS}:make_slow_branching"


POLICY = f"{WORLDS}:always_first"


SMALL = ["--n", "1,2,4", "--trials", "12", "--opening", "6"]


def collect(path: Path, *more: str, environment: str = ENVIRONMENT) -> list[str]:
    return [
        *["collect", environment, POLICY, "-o", str(path), "--scores", "logits"],
        *["--natural", "14", "--spread", "12", "--workers", "1", *SMALL, *more],
    ]


def let_ctrl_c_through() -> None:
    """In a new process: a shell that starts tests in the background has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
