"""A policy's identity: the hashes that studies and margins files already contain."""

from __future__ import annotations

from pathlib import Path

from safemargin.policies import load_policy
from safemargin.policies.identity import function_identity

AGENT = '''
from safemargin.policies import proxies


def scores(observations):
    """Score with a helper of the library."""
    return proxies.q_range(observations)
'''


def test_a_function_that_names_a_module_which_moved(tmp_path: Path) -> None:
    """Its import line was `from safemargin import proxies` when the hash was recorded."""
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    recorded = "21ad98fa3df0e99491c91f54b7e55fc33cc90e4c7839f67943dfb56fd3801ffe"
    assert load_policy(f"{path}:scores", kind="q").identity == f"sha256:{recorded}"


def test_an_object_of_a_module_which_moved() -> None:
    """Its module was `safemargin.proxies` when the hash was recorded; it has no source."""
    weights = type("Weights", (), {"__module__": "safemargin.policies.proxies"})()
    recorded = "6a442ca690fd48b5ffb679b5965f021dd66901afe39be96b1419cd2100fe2f81"
    assert function_identity(weights) == f"sha256:{recorded}"
