"""A fixture for pytest: `safemargin_gate` compares two checkpoints in a test.

    def test_agent_is_no_worse(safemargin_gate):
        safemargin_gate(candidate="runs/new", baseline="baseline.json").check()

Installed with the package; it imports nothing but pytest until a test uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from safemargin.validation.gate import GateResult


@pytest.fixture
def safemargin_gate(pytestconfig: pytest.Config) -> Callable[..., GateResult]:
    """Return `safemargin.gate`, with relative paths read from pytest's root folder.

    The result's `check()` fails the test unless the checkpoint passes; `check(undecided=True)` lets
    a test pass whose data cannot tell yet.
    """
    import safemargin

    def compare(candidate: Any, baseline: Any, **options: Any) -> GateResult:
        sides = [
            Path(pytestconfig.rootpath, each) if isinstance(each, str | Path) else each
            for each in (candidate, baseline)
        ]
        return safemargin.gate(*sides, **options)

    return compare
