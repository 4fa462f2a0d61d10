"""A policy's identity: the hashes that studies and margins files already contain."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import numpy as np

from safemargin.policies import Policy, load_policy
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


CACHED_RULE = """
import functools

@functools.cache
def lean(at):
    return at + 1

def rule(observations):
    return [[lean(0), 0] for _ in observations]
"""


def test_a_cached_function_in_a_file_counts_and_reaches_workers(tmp_path: Path) -> None:
    """It would be pickled by the name of a module that no worker can import."""

    def loaded(folder: str, text: str) -> Policy:
        path = tmp_path / folder / "rule.py"
        path.parent.mkdir()
        path.write_text(text)
        return load_policy(f"{path}:rule", kind="q")

    one = loaded("one", CACHED_RULE)
    assert loaded("moved", CACHED_RULE).identity == one.identity
    assert loaded("other", CACHED_RULE.replace("at + 1", "at + 2")).identity != one.identity
    sent = cloudpickle.dumps(one)
    for name in [name for name in sys.modules if name.startswith("safemargin_file_rule")]:
        del sys.modules[name]
    assert cloudpickle.loads(sent).scores(np.zeros((1, 4)))[0].tolist() == [[1.0, 0.0]]
