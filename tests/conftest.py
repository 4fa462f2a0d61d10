"""What many tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Worker processes and factories named in text must find tests/worlds.py, as the tests do.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def whole() -> bool:
    """Whether statistical truths are checked at full size (make test-slow)."""
    return os.environ.get("SAFEMARGIN_SLOW") == "1"
