"""Modules are hashed under the names they had when the first hashes were recorded."""

from __future__ import annotations

from importlib.util import find_spec

from safemargin.core.former_names import FORMER_MODULES, recorded_class, recorded_module
from safemargin.margins.lookup import Margins


def test_every_module_that_moved_exists_today() -> None:
    missing = [name for name in FORMER_MODULES if find_spec(name) is None]
    assert not missing, "a module that moves on takes its entry along"
    assert len(FORMER_MODULES) > 100


def test_names_are_those_recorded() -> None:
    assert recorded_module("safemargin.policies.proxies") == "safemargin.proxies"
    assert recorded_module("safemargin.web.fleet.track") == "safemargin.fleet.track"
    assert recorded_module("safemargin.web.explorer") == "safemargin.web.app"
    assert recorded_module("safemargin.environments.atari") == "safemargin.environments.atari"
    assert recorded_module("numpy") == "numpy"
    assert recorded_class(Margins) == "safemargin.margins.Margins"
