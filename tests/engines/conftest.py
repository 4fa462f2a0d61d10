"""A finished study that every engine must give."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.studies import create


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "finished"
    with create(path) as study:
        study.collect(natural=14, spread=12, engine="local")
    return path
